"""A training that stops as it is told: one rank does something wrong at one step. It knows nothing of perfscope.

Run: ``torchrun --nproc-per-node 2 benchmarks/stopping_training.py FRAMEWORK FAULT [--rank 1] [--at 12] [--cuda]``.
"""

from __future__ import annotations

import argparse
import os
import signal
import time
from collections.abc import Callable
from datetime import timedelta

import torch
from torch import distributed, nn
from torch.utils.data import DataLoader, Dataset

FRAMEWORKS = ("ddp", "fsdp2", "deepspeed", "pipeline")
HIDDEN, SAMPLES = 16, 4
_LONG_S = 600
_CYCLES_A_SECOND = 2 * 10**9
#: A crash takes another form in each framework.
_CRASHES = dict(zip(FRAMEWORKS, ("raise", "SIGSEGV", "exit", "SIGKILL"), strict=True))


class Samples(Dataset[torch.Tensor]):  # type: ignore[misc]  # torch is not followed
    """Random samples, one of which never comes."""

    def __init__(self, stalls_at: int | None) -> None:
        self._stalls_at = stalls_at

    def __len__(self) -> int:
        return 10**6

    def __getitem__(self, index: int) -> torch.Tensor:
        if index == self._stalls_at:
            time.sleep(_LONG_S)
        return torch.randn(HIDDEN, generator=torch.Generator().manual_seed(index))


def layers() -> nn.Sequential:
    return nn.Sequential(*(nn.Linear(HIDDEN, HIDDEN) for _ in range(4)))


def make_ddp(device: torch.device) -> Callable[[torch.Tensor], torch.Tensor]:
    model = nn.parallel.DistributedDataParallel(layers().to(device))
    return train_by(model, torch.optim.SGD(model.parameters(), lr=1e-3))


def make_fsdp2(device: torch.device) -> Callable[[torch.Tensor], torch.Tensor]:
    from torch.distributed.fsdp import fully_shard  # only where it is trained with: DeepSpeed runs without it

    model = layers().to(device)
    for layer in model:
        fully_shard(layer)
    fully_shard(model)
    return train_by(model, torch.optim.SGD(model.parameters(), lr=1e-3))


def train_by(model: nn.Module, optimizer: torch.optim.Optimizer) -> Callable[[torch.Tensor], torch.Tensor]:
    def step(batch: torch.Tensor) -> torch.Tensor:
        optimizer.zero_grad()
        loss: torch.Tensor = model(batch).square().mean()
        loss.backward()
        optimizer.step()
        return loss.detach()

    return step


def make_deepspeed(_device: torch.device) -> Callable[[torch.Tensor], torch.Tensor]:
    import deepspeed  # takes seconds, and is not needed by the others

    model = layers()
    engine, *_ = deepspeed.initialize(
        model=model,
        model_parameters=list(model.parameters()),
        dist_init_required=False,
        config={
            "train_micro_batch_size_per_gpu": SAMPLES,
            "optimizer": {"type": "AdamW", "params": {"lr": 1e-3, "torch_adam": True}},
            "zero_optimization": {"stage": 1},
            "steps_per_print": 10**9,
        },
    )

    def step(batch: torch.Tensor) -> torch.Tensor:
        loss = engine(batch).square().mean()
        engine.backward(loss)
        engine.step()
        return loss.detach()

    return step


def make_pipeline(device: torch.device) -> Callable[[torch.Tensor], torch.Tensor]:
    from torch.distributed.pipelining import PipelineStage, Schedule1F1B  # takes a second to import

    rank, ranks = distributed.get_rank(), distributed.get_world_size()
    stage = layers().to(device)
    schedule = Schedule1F1B(
        PipelineStage(stage, rank, ranks, device), 4, loss_fn=lambda output, target: (output - target).square().mean()
    )
    optimizer = torch.optim.SGD(stage.parameters(), lr=1e-3)

    def step(batch: torch.Tensor) -> torch.Tensor:
        optimizer.zero_grad()
        losses: list[torch.Tensor] = []
        if rank == 0:
            schedule.step(batch)
        elif rank == ranks - 1:
            schedule.step(target=torch.zeros_like(batch), losses=losses)
        else:
            schedule.step()
        optimizer.step()
        return torch.stack(losses).mean().detach() if losses else torch.zeros((), device=batch.device)

    return step


MAKERS = {"ddp": make_ddp, "fsdp2": make_fsdp2, "deepspeed": make_deepspeed, "pipeline": make_pipeline}


def crash(framework: str) -> None:
    how = _CRASHES[framework]
    if how == "raise":
        raise ValueError("the loss is not a number")
    if how == "exit":
        os._exit(3)
    os.kill(os.getpid(), signal.Signals[how])


def count(loss: torch.Tensor, fault: str, group: distributed.ProcessGroup) -> None:
    """What trainings add up over ranks behind a step: the loss, and some counters."""
    counters = torch.ones(5 if fault == "size" else 4, device=loss.device)
    values = {"loss": loss.reshape(1).clone(), "counters": counters}
    names = ["counters", "loss"] if fault == "order" else ["loss", "counters"]
    if fault == "skip":
        names.remove("counters")
    works = [
        distributed.all_reduce(
            values[name], group=group if fault == "group" and name == "counters" else None, async_op=True
        )
        for name in names
    ]
    for work in works:
        work.wait()


def clean_samples(batch: torch.Tensor, fault: str) -> torch.Tensor:
    if fault == "host":
        time.sleep(_LONG_S)
    return batch.clamp(-3, 3)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("framework", choices=FRAMEWORKS)
    parser.add_argument("fault")
    parser.add_argument("--rank", type=int, default=1)
    parser.add_argument("--at", type=int, default=12)
    parser.add_argument("--steps", type=int, default=40)
    parser.add_argument("--cuda", action="store_true")
    arguments = parser.parse_args()
    device = torch.device("cuda", int(os.environ["LOCAL_RANK"])) if arguments.cuda else torch.device("cpu")
    if arguments.cuda:
        torch.cuda.set_device(device)
    distributed.init_process_group("nccl" if arguments.cuda else "gloo", timeout=timedelta(seconds=_LONG_S))
    group = distributed.new_group(list(range(distributed.get_world_size())))
    is_faulty = distributed.get_rank() == arguments.rank
    torch.manual_seed(0)
    step = MAKERS[arguments.framework](device)
    stalls_at = SAMPLES * arguments.at if is_faulty and arguments.fault == "loader" else None
    batches = iter(DataLoader(Samples(stalls_at), batch_size=SAMPLES))
    for number in range(arguments.steps):
        fault = arguments.fault if is_faulty and number == arguments.at else ""
        batch = clean_samples(next(batches).to(device), fault)
        if fault == "crash":
            crash(arguments.framework)
        if fault == "memory":
            torch.empty(1 << 58, device=device)
        if fault == "device":
            torch.cuda._sleep(_LONG_S * _CYCLES_A_SECOND)  # noqa: SLF001 - a kernel that does not end
        loss = step(batch)
        count(loss, fault, group)
        if arguments.cuda:
            torch.cuda.synchronize()
        time.sleep(0.02)
    distributed.destroy_process_group()


if __name__ == "__main__":
    main()
