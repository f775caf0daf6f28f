"""What is recorded of a step besides its time: its inputs, and what the framework states."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
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


@dataclass(slots=True)
class StepFacts:
    """What was seen since the last step boundary.

    Attributes:
        micro_batches: Forward passes of a wrapped model.
        forward_samples: Samples that went into them, and ``forward_tokens`` their tokens.
        pipelined: What entered a pipeline, to be cut into micro-batches.
        loaded_samples: Samples that data loaders handed out, and ``loaded_tokens`` their tokens.
        passes: The micro-batches that a pipeline ran forward, as far as they were looked at.
        pipeline_micro_batches: How many they are.
        data_wait_ns: Time spent waiting for data loaders.
        has_loader: A data loader was used.
        optimizer_steps: Outermost optimizer steps.
        reevaluates: The optimizer runs the model forward several times on the same batch, as L-BFGS does.
        has_cleared: Gradients were cleared, or an optimizer was built: another update begins.
    """

    micro_batches: int = 0
    forward_samples: int = 0
    forward_tokens: int = 0
    pipelined: Work | None = None
    loaded_samples: int = 0
    loaded_tokens: int = 0
    passes: set[int] = field(default_factory=set)
    pipeline_micro_batches: int = 0
    data_wait_ns: int = 0
    has_loader: bool = False
    optimizer_steps: int = 0
    reevaluates: bool = False
    has_cleared: bool = False

    @property
    def has_begun(self) -> bool:
        """Whether anything was seen that an update begins with."""
        has_pipelined = self.pipelined is not None and self.pipelined.samples > 0
        return bool(self.has_cleared or self.has_loader or self.micro_batches or self.passes or has_pipelined)

    @property
    def loaded(self) -> Work:
        """What data loaders handed out."""
        return Work(self.loaded_samples, self.loaded_tokens)

    @property
    def work(self) -> Work:
        """The work of the step by the most exact count of it."""
        if self.reevaluates and self.loaded_samples:
            return self.loaded
        if self.pipelined is not None and self.pipelined.samples:
            return self.pipelined
        return choose_work(Work(self.forward_samples, self.forward_tokens), self.loaded)

    def add_forward(self, args: tuple[object, ...], kwargs: dict[str, object]) -> None:
        """Count one micro-batch by the first tensor among the inputs."""
        self.micro_batches += 1
        work = Work(self.forward_samples, self.forward_tokens).with_batch(find_input(args, kwargs))
        self.forward_samples, self.forward_tokens = work

    def add_pipeline_batch(self, args: tuple[object, ...], kwargs: dict[str, object]) -> None:
        """Count a batch that a pipeline cuts; its middle stages receive none."""
        self.pipelined = (self.pipelined or _NO_WORK).with_batch(_first_tensor((args, kwargs)))

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
        self.loaded_samples, self.loaded_tokens = self.loaded.with_batch(find_loaded(batch))


_SEQUENCES = (list, tuple)


def choose_work(forwards: Work, loaded: Work) -> Work:
    """The work of a step by what went into the model, or else by what data loaders handed out."""
    return forwards if forwards.samples else loaded


def find_input(args: tuple[object, ...], kwargs: dict[str, object]) -> Any:
    """The tensor by which what enters a model is counted: its token ids, else the first tensor; None for none."""
    ids = kwargs.get("input_ids") if kwargs else None
    first = args[0] if ids is None and args else ids
    return first if _is_tensor(first) else _first_tensor((ids, args, kwargs))


def find_loaded(batch: Any) -> Any:
    """The tensor by which a batch of a data loader is counted: its token ids, else the first tensor; None for none."""
    first = batch[0] if type(batch) in _SEQUENCES and batch else batch
    if _is_tensor(first):
        return first
    ids = batch.get("input_ids") if isinstance(batch, Mapping) else None
    return ids if _is_tensor(ids) else _first_tensor((ids, batch))


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
