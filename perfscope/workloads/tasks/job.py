"""The place of a process in a training, and what every strategy needs of it: devices, layers, optimizer, loss."""

from __future__ import annotations

import argparse
import os
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import TypeAlias

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from perfscope.workloads.tasks.task import TrainingTask

#: Trains on inputs and targets, and returns their mean loss; None on a rank that does not have it.
Step: TypeAlias = Callable[[Tensor, Tensor], Tensor | None]

#: Parameters that an optimizer updates together, under "params".
ParameterGroup: TypeAlias = dict[str, list[nn.Parameter]]

_RANK_VARIABLES = {
    "RANK": ("SLURM_PROCID", "OMPI_COMM_WORLD_RANK", "PMI_RANK"),
    "WORLD_SIZE": ("SLURM_NTASKS", "OMPI_COMM_WORLD_SIZE", "PMI_SIZE"),
    "LOCAL_RANK": ("SLURM_LOCALID", "OMPI_COMM_WORLD_LOCAL_RANK", "MPI_LOCALRANKID"),
}


@dataclass(frozen=True, slots=True)
class StrategyTraining:
    """A strategy at work, from its ``build``; every rank calls ``save``. If it ``is_called`` it works until it left."""

    step: Step
    save: Callable[[Path], None]
    share: tuple[int, int] = (0, 1)
    leave: Callable[[], object] = bool
    is_called: bool = False


@dataclass(slots=True)
class Job:
    """One process of a training."""

    task: TrainingTask
    options: argparse.Namespace
    rank: int
    local_rank: int
    world_size: int
    devices: list[torch.device]
    hits: list[tuple[Tensor, int]] = field(default_factory=list)

    @property
    def device(self) -> torch.device:
        """The device of the process; the first of several."""
        return self.devices[0]

    @property
    def lr(self) -> float:
        """The learning rate."""
        return self.task.lr

    @property
    def is_bf16(self) -> bool:
        """Whether matrix products are in bf16."""
        return bool(self.options.precision == "bf16")

    def in_precision(self, inputs: Tensor) -> Tensor:
        """Inputs in bf16 where that was asked for; tokens as they are."""
        return inputs.to(torch.bfloat16) if self.is_bf16 and inputs.is_floating_point() else inputs

    def join_group(self) -> None:
        """Join the group of all processes, unless that was done."""
        if not dist.is_initialized():
            dist.init_process_group("nccl" if self.device.type == "cuda" else "gloo")

    def layers(self) -> list[nn.Module]:
        """The layers, with the same weights on every rank; recomputed in the backward pass where that was asked for."""
        torch.manual_seed(0)
        layers = self.task.layers()
        if self.options.recompute:
            for layer in layers:
                if self.task.block is None or isinstance(layer, self.task.block):
                    layer.forward = partial(checkpoint, layer.forward, use_reentrant=False)
        return layers

    def model(self) -> nn.Module:
        """The whole model on the process's device."""
        return self.join_layers(self.layers()).to(self.device)

    def join_layers(self, layers: Iterable[nn.Module]) -> nn.Module:
        """Layers in a row, whose products are in bf16 where that was asked for."""
        return _AutocastLayers(*layers) if self.is_bf16 else nn.Sequential(*layers)

    def cut_layers(self, parts: int) -> list[nn.Module]:
        """The model in ``parts`` of about as many layers; ValueError where there are fewer layers."""
        layers = self.layers()
        if len(layers) < parts:
            raise ValueError(f"a model of {len(layers)} layers cannot be cut into {parts} stages")
        edges = [part * len(layers) // parts for part in range(parts + 1)]
        return [self.join_layers(layers[begin:end]) for begin, end in pairwise(edges)]

    def compile(self, model: nn.Module) -> None:
        """Compile a model in place where that was asked for."""
        if self.options.compile:
            model.compile()

    def optimizer(self, parameters: Iterable[nn.Parameter] | list[ParameterGroup]) -> torch.optim.Optimizer:
        """The optimizer of every strategy."""
        return torch.optim.AdamW(parameters, lr=self.lr)

    def loss(self, outputs: Tensor, targets: Tensor) -> Tensor:
        """The mean loss; counts correct answers, too."""
        if self.task.is_classified:
            self.hits.append(((outputs.detach().argmax(-1) == targets).sum(), len(targets)))
        return self.task.loss(outputs, targets)

    def plain_step(self, model: nn.Module, optimizer: torch.optim.Optimizer) -> Step:
        """A step as every tutorial has it: forward, backward, update."""

        def step(inputs: Tensor, targets: Tensor) -> Tensor:
            loss = self.loss(model(inputs), targets)
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
            return loss

        return step

    def save_on_first_rank(self, model: nn.Module, optimizer: torch.optim.Optimizer) -> Callable[[Path], None]:
        """Save a model and an optimizer of which every rank has a copy."""
        if self.rank > 0:
            return lambda _folder: None
        return lambda folder: _write(model, optimizer, folder / "whole.pt")

    def save_on_every_rank(self, model: nn.Module, optimizer: torch.optim.Optimizer) -> Callable[[Path], None]:
        """Save the part of a model and an optimizer that this rank has."""
        return lambda folder: _write(model, optimizer, folder / f"rank-{self.rank:05}.pt")


class _AutocastLayers(nn.Sequential):
    def forward(self, states: Tensor) -> Tensor:
        with torch.autocast(states.device.type, torch.bfloat16):
            outputs: Tensor = super().forward(states)
        return outputs.to(torch.bfloat16)


def set_rank_variables() -> None:
    """Name this process's place as torchrun does, where Slurm, Open MPI or MPICH started it."""
    for variable, substitutes in _RANK_VARIABLES.items():
        stated = next((os.environ[name] for name in substitutes if name in os.environ), None)
        if stated is not None:
            os.environ.setdefault(variable, stated)


def find_job(task: TrainingTask, options: argparse.Namespace) -> Job:
    """The place of this process, from the variables of its launcher; without any it is alone."""
    set_rank_variables()
    rank, local_rank = int(os.environ.get("RANK", "0")), int(os.environ.get("LOCAL_RANK", "0"))
    if options.device == "cpu":
        devices = [torch.device("cpu")] * options.devices
    else:
        devices = [torch.device("cuda", local_rank + index) for index in range(options.devices)]
        torch.cuda.set_device(devices[0])
    return Job(task, options, rank, local_rank, int(os.environ.get("WORLD_SIZE", "1")), devices)


def _write(model: nn.Module, optimizer: torch.optim.Optimizer, path: Path) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    torch.save({"model": model.state_dict(), "optimizer": optimizer.state_dict()}, path)
