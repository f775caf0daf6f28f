"""A GAN's loop: 12 iterations, each with a step of the discriminator's SGD and of the generator's Adam."""

import torch

discriminator, generator = torch.nn.Linear(4, 1), torch.nn.Linear(4, 4)
sgd = torch.optim.SGD(discriminator.parameters(), lr=0.01)
adam = torch.optim.Adam(generator.parameters(), lr=0.01)
for _ in range(12):
    noise = torch.randn(8, 4)
    sgd.zero_grad()
    discriminator(generator(noise).detach()).mean().backward()
    sgd.step()
    adam.zero_grad()
    (-discriminator(generator(noise)).mean()).backward()
    adam.step()
