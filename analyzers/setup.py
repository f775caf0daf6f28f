"""How training is set up: the options of data loaders, DDP, optimizer and engine that decide what a step costs."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields
from typing import Annotated

from perfscope.errors import MissingInput
from perfscope.report import Section
from perfscope.result import Doc, Figures, Result
from perfscope.tables.run import Run
from perfscope.wire.setup import DdpRecord, LoaderRecord, OptimizerRecord, PaddingRecord

#: Bytes of an element; gradients have the type of their weights.
_BYTES = {"bf16": 2, "fp16": 2, "fp32": 4}


class RankSetup(Figures, frozen=True):
    """How a rank trains."""

    rank: Annotated[int, Doc("The rank.")]
    frameworks: Annotated[tuple[str, ...], Doc("Frameworks that are loaded.")]
    loaders: Annotated[tuple[LoaderRecord, ...], Doc("Its data loaders.")]
    ddp: Annotated[DdpRecord | None, Doc("DistributedDataParallel; None where it is not used.")]
    optimizer: Annotated[OptimizerRecord | None, Doc("None where none was seen.")]
    engine: Annotated[Mapping[str, bool | int | float | str], Doc("Plain options of DeepSpeed's engine.")]
    padding: Annotated[PaddingRecord | None, Doc("None where no batch has an attention mask.")]
    collects_garbage: Annotated[bool | None, Doc("Whether Python's garbage collection was on after the first step.")]
    zero_stage: Annotated[int | None, Doc("Stage of ZeRO.")]
    checkpointing: Annotated[str | None, Doc("Which activations are recomputed by the settings, or ``in use``.")]
    gradient_bytes: Annotated[int | None, Doc("Size of all gradients.")]
    options: Annotated[Mapping[str, str] | None, Doc("The options of its command line, with their values.")]


class Setup(Result, frozen=True):
    """``results.setup``: the options that training uses."""

    ranks: Annotated[tuple[RankSetup, ...], Doc("Each rank.")]
    allocator: Annotated[str | None, Doc("The environment's setting of torch's allocator.")]
    are_alike: bool

    def sections(self) -> tuple[Section, ...]:
        """One line for each thing that was seen; ranks that differ are in JSON."""
        first = self.ranks[0]
        notes = [f"Frameworks beside PyTorch: {', '.join(first.frameworks) or 'none'}."]
        notes += [
            f"DataLoader: {loader.workers} workers, batches {'pinned' if loader.pin_memory else 'not pinned'}, "
            f"{loader.starts} iterations begun."
            for loader in first.loaders
        ]
        if first.ddp is not None:
            unused = "on" if first.ddp.find_unused_parameters else "off"
            notes.append(f"DistributedDataParallel: {first.ddp.tensors} gradients, find_unused_parameters {unused}.")
        if first.optimizer is not None:
            options = (("foreach", first.optimizer.foreach), ("fused", first.optimizer.fused))
            stated = "".join(f", {name}={value}" for name, value in options if value is not None)
            notes.append(f"Optimizer: {first.optimizer.name} of {first.optimizer.tensors} tensors{stated}.")
        if not self.are_alike:
            notes.append(f"These are rank {first.rank}'s; ranks differ, see `--format json`.")
        return (Section("Set-up", notes=tuple(notes)),)


def analyze(run: Run) -> Setup:
    """The set-up of a run; MissingInput where no rank recorded one."""
    if not run.setups:
        raise MissingInput("the run did not record how training is set up")
    models, options = {model.rank: model for model in run.models}, {rank.rank: rank.options for rank in run.ranks}
    ranks = tuple(
        RankSetup(
            rank,
            **{field.name: getattr(record, field.name) for field in fields(record)},
            zero_stage=model.zero_stage if model else None,
            checkpointing=model.checkpointing if model else None,
            gradient_bytes=model.trainable * _BYTES.get(model.weights_dtype or "", 4) if model else None,
            options=options.get(rank),
        )
        for rank, record in sorted(run.setups.items())
        for model in (models.get(rank),)
    )
    return Setup(ranks, run.allocator or None, are_alike=len({str(record) for record in run.setups.values()}) == 1)
