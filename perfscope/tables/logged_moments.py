"""When a training log says that iterations ended."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class LoggedMoment:
    """A line with a time and the number of an iteration.

    Attributes:
        t_ns: When, since 1970, as the log's clock says.
        iteration: The last iteration that is complete.
        stated_ns: What an iteration took by the log; absent where the line does not say.
        saved_ns: How long saves stalled training since the moment before; 0 where the log does not say.
        has_evaluation, has_save: Whether the model was validated, and a checkpoint saved, since then.
    """

    t_ns: int
    iteration: int
    stated_ns: int | None
    saved_ns: int = 0
    has_evaluation: bool = False
    has_save: bool = False


@dataclass(frozen=True, slots=True)
class LoggedMoments:
    """One log, with the moments at which iterations ended, in its order.

    ``ranks`` is how many trained, absent where the log does not say. ``damage`` is what contradicts itself, in words.
    """

    path: str
    first_ns: int
    last_ns: int
    moments: tuple[LoggedMoment, ...]
    ranks: int | None = None
    damage: tuple[str, ...] = ()
