"""What is recorded of a step besides its time: its inputs, and what the framework states."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

#: Token ids have a dimension of samples and one of positions.
_DIMENSIONS_OF_IDS = 2
#: Levels of sequences and mappings around a batch that are looked into.
_DEEPEST = 2


class StatedStep(NamedTuple):
    """What the framework itself states of a step; None is what it does not state.

    Attributes:
        skipped: It counted the step without updating the weights.
        global_samples: Samples of the step over all ranks.
        micro_batches: Forward passes in the step.
        loss_scale: The loss scale.
        samples: Samples that this rank took in.
        tokens: Tokens that this rank took in.
        iteration: The framework's own number of the step, which a resumed run does not begin at 1.
    """

    skipped: bool | None = None
    global_samples: int | None = None
    micro_batches: int | None = None
    loss_scale: float | None = None
    samples: int | None = None
    tokens: int | None = None
    iteration: int | None = None


class Work(NamedTuple):
    """Samples that went in, and tokens where the input is integers of two dimensions."""

    samples: int = 0
    tokens: int = 0

    def with_work(self, more: Work) -> Work:
        """The sum."""
        return Work(self.samples + more.samples, self.tokens + more.tokens)

    def with_batch(self, batch: Any) -> Work:
        """The sum with a batch, which is its token ids, else its first tensor; None where there is none."""
        shape = () if batch is None else batch.shape
        if not shape:
            return self
        are_ids = len(shape) == _DIMENSIONS_OF_IDS and not batch.is_floating_point()
        return Work(self.samples + shape[0], self.tokens + (shape[0] * shape[1] if are_ids else 0))


_NO_WORK = Work()


@dataclass
class StepFacts:
    """What was seen since the last step boundary.

    Attributes:
        micro_batches: Forward passes of a wrapped model.
        forwards: What went into them.
        pipelined: What entered a pipeline, to be cut into micro-batches.
        loaded: What data loaders handed out.
        passes: The micro-batches that a pipeline ran forward.
        data_wait_ns: Time spent waiting for data loaders.
        has_loader: A data loader was used.
        optimizer_steps: Outermost optimizer steps.
        reevaluates: The optimizer runs the model forward several times on the same batch, as L-BFGS does.
        has_cleared: Gradients were cleared, or an optimizer was built: another update begins.
    """

    micro_batches: int = 0
    forwards: Work = _NO_WORK
    pipelined: Work = _NO_WORK
    loaded: Work = _NO_WORK
    passes: frozenset[int] = frozenset()
    data_wait_ns: int = 0
    has_loader: bool = False
    optimizer_steps: int = 0
    reevaluates: bool = False
    has_cleared: bool = False

    @property
    def has_begun(self) -> bool:
        """Whether anything was seen that an update begins with."""
        return bool(self.has_cleared or self.has_loader or self.micro_batches or self.passes or self.pipelined.samples)

    @property
    def work(self) -> Work:
        """The work of the step by the most exact count of it."""
        if self.reevaluates and self.loaded.samples:
            return self.loaded
        return self.pipelined if self.pipelined.samples else self.forwards if self.forwards.samples else self.loaded

    def add_forward(self, args: tuple[object, ...], kwargs: dict[str, object]) -> None:
        """Count one micro-batch by the first tensor among the inputs."""
        self.micro_batches += 1
        ids = kwargs.get("input_ids") if kwargs else None
        first = args[0] if ids is None and args else ids
        self.forwards = self.forwards.with_batch(first if _is_tensor(first) else _first_tensor((ids, args, kwargs)))

    def add_pipeline_batch(self, args: tuple[object, ...], kwargs: dict[str, object]) -> None:
        """Count a batch that a pipeline cuts; its middle stages receive none."""
        self.pipelined = self.pipelined.with_batch(_first_tensor((args, kwargs)))

    def add_pass(self, kind: str, microbatch: int) -> None:
        """Count a micro-batch of a pipeline by its forward pass."""
        if kind == "F":
            self.passes |= {microbatch}

    def add_wait(self, wait_ns: int) -> None:
        """Training waited for a data loader."""
        self.has_loader = True
        self.data_wait_ns += wait_ns

    def add_batch(self, batch: Any, wait_ns: int) -> None:
        """Count one batch of a data loader, for which training waited."""
        self.add_wait(wait_ns)
        self.add_work(batch)

    def add_work(self, batch: Any) -> None:
        """Count what is in a batch of a data loader."""
        first = batch[0] if type(batch) in _SEQUENCES and batch else batch
        if not _is_tensor(first):
            ids = batch.get("input_ids") if isinstance(batch, Mapping) else None
            first = ids if _is_tensor(ids) else _first_tensor((ids, batch))
        self.loaded = self.loaded.with_batch(first)


_SEQUENCES = (list, tuple)


def _is_tensor(value: object) -> bool:
    return isinstance(value, sys.modules["torch"].Tensor)


def _first_tensor(value: Any, depth: int = _DEEPEST) -> Any:
    """The first tensor among sequences and mappings inside each other; None where there is none."""
    if _is_tensor(value):
        return value
    if depth < 0:
        return None
    values = value if isinstance(value, _SEQUENCES) else value.values() if isinstance(value, Mapping) else ()
    for inner in values:
        first = _first_tensor(inner, depth - 1)
        if first is not None:
            return first
    return None
