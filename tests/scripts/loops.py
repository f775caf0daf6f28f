"""Small trainings whose steps are hard to count; each function trains in one way: ``loops.py WAY``."""

import sys

import torch
from torch import distributed, nn
from torch.nn.parallel import DistributedDataParallel
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


def train_gan(rounds, critic_steps, wrap=lambda model: model):
    """Rounds of a step of the generator after some of the discriminator."""
    critic, generator = wrap(torch.nn.Linear(4, 1)), wrap(torch.nn.Linear(4, 4))
    critic_optimizer = torch.optim.RMSprop(critic.parameters(), lr=0.01)
    generator_optimizer = torch.optim.Adam(generator.parameters(), lr=0.01)
    for step, (real,) in enumerate(batches(rounds * critic_steps), 1):
        critic_optimizer.zero_grad()
        fake = generator(torch.randn(BATCH, 4)).detach()
        critic(torch.cat([real, fake])).mean().backward()
        critic_optimizer.step()
        if step % critic_steps == 0:
            generator_optimizer.zero_grad()
            (-critic(generator(torch.randn(BATCH, 4)))).mean().backward()
            generator_optimizer.step()


def gan():
    """8 steps of a generator, with 5 steps of the discriminator before each."""
    train_gan(8, 5)


def distributed_gan():
    """7 rounds under DistributedDataParallel, with 3 steps of the discriminator each."""
    distributed.init_process_group("gloo")
    train_gan(7, 3, DistributedDataParallel)
    distributed.destroy_process_group()


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


def unscaled():
    """Six iterations whose GradScaler only scales the loss: the script steps the optimizer itself."""
    model = torch.nn.Linear(4, 4)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    scaler = torch.amp.GradScaler("cpu")
    for (inputs,) in batches(6):
        optimizer.zero_grad()
        scaler.scale(model(inputs).square().mean()).backward()
        scaler.unscale_(optimizer)
        optimizer.step()
        scaler.update()


def in_backward():
    """Each parameter has an optimizer of its own, which steps in a hook of its gradient, as in PyTorch's tutorial."""
    model = torch.nn.Sequential(*[torch.nn.Linear(4, 4) for _ in range(4)])
    optimizers = {parameter: torch.optim.Adam([parameter], foreach=False) for parameter in model.parameters()}

    def step(parameter):
        optimizers[parameter].step()
        optimizers[parameter].zero_grad()

    for parameter in model.parameters():
        parameter.register_post_accumulate_grad_hook(step)
    for _ in range(20):
        model(torch.randn(4, 4)).sum().backward()


def train_compiled(compile_parts):
    """Eight steps, of which ``compile_parts`` compiles the model or the update."""
    model = torch.nn.Linear(4, 4)
    optimizer = torch.optim.AdamW(model.parameters())
    forward, step = compile_parts(model, optimizer.step, torch.compile)
    for _ in range(8):
        forward(torch.randn(2, 4)).sum().backward()
        step()
        optimizer.zero_grad()


def compiled_model():
    """torch.compile has the model."""
    train_compiled(lambda model, step, compiled: (compiled(model, backend="eager"), step))


def compiled_step():
    """torch.compile has the optimizer's step."""
    train_compiled(lambda model, step, compiled: (model, compiled(step, backend="eager")))


def compiled_function():
    """torch.compile has a function around the optimizer's step."""
    train_compiled(lambda model, step, compiled: (model, compiled(lambda: step() and None, backend="eager")))


class Stages(nn.Module):
    """Stages in one process; what would be a copy to the next device is one to the same."""

    def __init__(self):
        super().__init__()
        self.stages = nn.ModuleList(nn.Linear(8, 8) for _ in range(2))

    def forward(self, batch):
        waiting, done = None, []
        for part in [*batch.chunk(4), None]:  # the second stage runs one micro-batch behind the first
            if waiting is not None:
                done.append(self.stages[1](waiting))
            waiting = None if part is None else self.stages[0](part).to("cpu")
        return torch.cat(done)


def stages():
    """Six steps of stages in one process, which a loop feeds one after the other."""
    train_whole(Stages())


def replicas():
    """Six steps of nn.DataParallel."""
    train_whole(nn.DataParallel(nn.Linear(8, 8)))


def train_whole(model):
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for _ in range(6):
        update(optimizer, model, torch.randn(8, 8))


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
