"""7 rounds of a GAN under DistributedDataParallel: 3 steps of the discriminator to one of the generator."""

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, TensorDataset

BATCH = 8

dist.init_process_group("gloo")
torch.manual_seed(dist.get_rank())
critic = DistributedDataParallel(torch.nn.Linear(4, 1))
generator = DistributedDataParallel(torch.nn.Linear(4, 4))
critic_optimizer = torch.optim.Adam(critic.parameters())
generator_optimizer = torch.optim.Adam(generator.parameters())
for number, (real,) in enumerate(DataLoader(TensorDataset(torch.randn(21 * BATCH, 4)), batch_size=BATCH), 1):
    critic_optimizer.zero_grad()
    fake = generator(torch.randn(BATCH, 4)).detach()
    (critic(torch.cat([real, fake]))).mean().backward()
    critic_optimizer.step()
    if number % 3 == 0:
        generator_optimizer.zero_grad()
        (-critic(generator(torch.randn(BATCH, 4)))).mean().backward()
        generator_optimizer.step()
dist.destroy_process_group()
