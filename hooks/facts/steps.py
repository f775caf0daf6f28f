"""What is known of a step besides its time: what went in, what the framework states, how much memory it took."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True)
class Stated:
    """What the framework itself says of a step; None is what it does not say.

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


@dataclass
class Work:
    """Samples that went in, and tokens where the input is integers of two dimensions."""

    samples: int = 0
    tokens: int = 0

    def add(self, value: Any) -> None:
        """Count a batch by its token ids, else by the first tensor in it."""
        batch = _first_tensor(value, sys.modules["torch"].Tensor, depth=2)
        if batch is not None and batch.dim() > 0:
            self.samples += batch.shape[0]
            if batch.dim() == 2 and not batch.is_floating_point():  # noqa: PLR2004 - samples x positions
                self.tokens += batch.numel()


@dataclass
class StepFacts:
    """What was seen since the last step boundary.

    Attributes:
        micro_batches: Forward passes of a wrapped model.
        forwards: What went into them.
        whole: What a pipeline was given to cut into micro-batches.
        loaded: What data loaders handed out.
        passes: The micro-batches that a pipeline ran forward.
        data_wait_ns: Time spent waiting for data loaders.
        loader_seen: A data loader was used at all.
        optimizer_steps: Outermost optimizer steps.
    """

    micro_batches: int = 0
    forwards: Work = field(default_factory=Work)
    whole: Work = field(default_factory=Work)
    loaded: Work = field(default_factory=Work)
    passes: set[int] = field(default_factory=set)
    data_wait_ns: int = 0
    loader_seen: bool = False
    optimizer_steps: int = 0

    @property
    def work(self) -> Work:
        """The work of the step by whoever saw it best."""
        return next((work for work in (self.whole, self.forwards, self.loaded) if work.samples), self.loaded)

    def add_forward(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        """Count one micro-batch by the first tensor among the inputs."""
        self.micro_batches += 1
        self.forwards.add((kwargs.get("input_ids"), args, kwargs))

    def add_whole_batch(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        """Count a batch that a pipeline is given; its middle stages are given none."""
        self.whole.add((args, kwargs))

    def add_pass(self, kind: str, number: int) -> None:
        """Count a micro-batch of a pipeline by its forward pass."""
        if kind == "F":
            self.passes.add(number)

    def add_batch(self, batch: Any, wait_ns: int) -> None:
        """Count one batch of a data loader."""
        self.loader_seen = True
        self.data_wait_ns += wait_ns
        ids = batch.get("input_ids") if isinstance(batch, Mapping) else None
        self.loaded.add((ids, batch))


def _first_tensor(value: Any, tensor: type, depth: int) -> Any:
    if isinstance(value, tensor):
        return value
    if depth < 0:
        return None
    values = value.values() if isinstance(value, Mapping) else value if isinstance(value, (tuple, list)) else ()
    for inner in values:
        found = _first_tensor(inner, tensor, depth - 1)
        if found is not None:
            return found
    return None
