"""Trainings of several optimizers; each function trains in one way and knows its number of steps.

Usage: several_optimizers.py WAY
"""

import sys

import torch
from torch.utils.data import DataLoader, TensorDataset

BATCH = 8


def batches(count):
    """A loader of so many batches."""
    return DataLoader(TensorDataset(torch.randn(count * BATCH, 4)), batch_size=BATCH)


def update(optimizer, model, inputs):
    optimizer.zero_grad()
    model(inputs).square().mean().backward()
    optimizer.step()


def folds():
    """Cross-validation: 4 folds of 5 steps, each with a new model and optimizer."""
    for _ in range(4):
        model = torch.nn.Linear(4, 4)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9)
        for (inputs,) in batches(5):
            update(optimizer, model, inputs)


def in_turn():
    """Two models that train an epoch of 6 steps in turn, 3 times."""
    models = [torch.nn.Linear(4, 4) for _ in range(2)]
    optimizers = [torch.optim.SGD(model.parameters(), lr=0.01) for model in models]
    for _ in range(3):
        for model, optimizer in zip(models, optimizers, strict=True):
            for (inputs,) in batches(6):
                update(optimizer, model, inputs)


def gan():
    """8 steps of a generator, with 5 steps of the discriminator before each."""
    critic, generator = torch.nn.Linear(4, 1), torch.nn.Linear(4, 4)
    critic_optimizer = torch.optim.RMSprop(critic.parameters(), lr=0.01)
    generator_optimizer = torch.optim.Adam(generator.parameters(), lr=0.01)
    for step, (real,) in enumerate(batches(40), 1):
        critic_optimizer.zero_grad()
        (critic(generator(torch.randn(BATCH, 4)).detach()) - critic(real)).mean().backward()
        critic_optimizer.step()
        if step % 5 == 0:
            generator_optimizer.zero_grad()
            (-critic(generator(torch.randn(BATCH, 4)))).mean().backward()
            generator_optimizer.step()


def groups():
    """An optimizer for each of 3 layers, 9 iterations; they step in another order each time."""
    model = torch.nn.Sequential(*[torch.nn.Linear(4, 4) for _ in range(3)])
    optimizers = [torch.optim.SGD(layer.parameters(), lr=0.01) for layer in model]
    for (inputs,) in batches(9):
        model.zero_grad()
        model(inputs).square().mean().backward()
        optimizers.append(optimizers.pop(0))
        for optimizer in optimizers:
            optimizer.step()


def closures():
    """L-BFGS, which calls its closure up to 20 times a step, 7 steps."""
    model = torch.nn.Linear(4, 4)
    optimizer = torch.optim.LBFGS(model.parameters(), line_search_fn="strong_wolfe")
    for (inputs,) in batches(7):

        def closure(inputs=inputs):
            optimizer.zero_grad()
            loss = model(inputs).square().mean()
            loss.backward()
            return loss

        optimizer.step(closure)


def scaled():
    """Two optimizers below one GradScaler, 6 iterations."""
    models = [torch.nn.Linear(4, 4) for _ in range(2)]
    optimizers = [torch.optim.SGD(model.parameters(), lr=0.01) for model in models]
    scaler = torch.amp.GradScaler("cpu", init_scale=8.0)
    for (inputs,) in batches(6):
        for optimizer in optimizers:
            optimizer.zero_grad()
        scaler.scale(sum(model(inputs).square().mean() for model in models)).backward()
        for optimizer in optimizers:
            scaler.step(optimizer)
        scaler.update()


def resumed():
    """5 steps, and 5 more of an optimizer that resumes from the first one's state; the first one is deleted."""
    model = torch.nn.Linear(4, 4)
    optimizer = torch.optim.Adam(model.parameters())
    for (inputs,) in batches(5):
        update(optimizer, model, inputs)
    state = optimizer.state_dict()
    del optimizer
    optimizer = torch.optim.Adam(model.parameters())
    optimizer.load_state_dict(state)
    for (inputs,) in batches(5):
        update(optimizer, model, inputs)


if __name__ == "__main__":
    torch.manual_seed(0)
    globals()[sys.argv[1]]()
