"""How training is set up: the options of data loaders, DDP, optimizer and engine that decide what a step costs."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass

from perfscope.errors import MissingInput
from perfscope.report import Json, Section
from perfscope.tables.model import Model
from perfscope.tables.run import Run
from perfscope.wire.setup import LoaderRecord, OptimizerRecord, SetupRecord

#: Bytes of an element; gradients have the type of their weights.
_BYTES = {"bf16": 2, "fp16": 2, "fp32": 4}


@dataclass(frozen=True, slots=True)
class Setup:
    """The set-up of every rank that recorded one, and its model."""

    ranks: Mapping[int, SetupRecord]
    models: Mapping[int, Model]
    options: Mapping[int, Mapping[str, str] | None]
    allocator: str

    def data(self) -> Json:
        """The value of ``results.setup``."""
        return {
            "ranks": [
                {"rank": rank, **asdict(record), **self._model(rank), "options": self._options(rank)}
                for rank, record in sorted(self.ranks.items())
            ],
            "allocator": self.allocator or None,
        }

    def _model(self, rank: int) -> dict[str, Json]:
        model = self.models.get(rank)
        return {
            "zero_stage": model.zero_stage if model else None,
            "checkpointing": model.checkpointing if model else None,
            "gradient_bytes": model.trainable * _BYTES.get(model.weights_dtype or "", 4) if model else None,
        }

    def _options(self, rank: int) -> Json:
        options = self.options.get(rank)
        return None if options is None else dict(options)

    def sections(self) -> tuple[Section, ...]:
        """One line for each thing that was seen; ranks that differ are in JSON."""
        record = self.ranks[min(self.ranks)]
        notes = [f"Frameworks beside PyTorch: {', '.join(record.frameworks) or 'none'}."]
        notes += [_describe_loader(loader) for loader in record.loaders]
        if record.ddp is not None:
            unused = "on" if record.ddp.find_unused_parameters else "off"
            notes.append(f"DistributedDataParallel: {record.ddp.tensors} gradients, find_unused_parameters {unused}.")
        if record.optimizer is not None:
            notes.append(_describe_optimizer(record.optimizer))
        if len({str(setup) for setup in self.ranks.values()}) > 1:
            notes.append(f"These are rank {min(self.ranks)}'s; ranks differ, see `--format json`.")
        return (Section("Set-up", notes=tuple(notes)),)


def _describe_loader(loader: LoaderRecord) -> str:
    pinned = "pinned" if loader.pin_memory else "not pinned"
    return f"DataLoader: {loader.workers} workers, batches {pinned}, {loader.starts} iterations begun."


def _describe_optimizer(optimizer: OptimizerRecord) -> str:
    options = (("foreach", optimizer.foreach), ("fused", optimizer.fused))
    stated = "".join(f", {name}={value}" for name, value in options if value is not None)
    return f"Optimizer: {optimizer.name} of {optimizer.tensors} tensors{stated}."


def analyze(run: Run) -> Setup:
    """The set-up of a run.

    Raises:
        MissingInput: No rank recorded one.
    """
    if not run.setups:
        raise MissingInput("the run did not record how training is set up")
    models, options = {model.rank: model for model in run.models}, {rank.rank: rank.options for rank in run.ranks}
    return Setup(run.setups, models, options, run.allocator)
