"""The records of training steps: one boundary a step, or several where optimizers take turns.

A boundary that may be a part of a longer step waits, and lies in a file of its own meanwhile: a process that is killed
does not lose it.
"""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING, Any, NamedTuple

from perfscope.hooks.timers.exchanges import to_waits
from perfscope.wire.host import HostWaits, HostWork
from perfscope.wire.records import StepRecord

if TYPE_CHECKING:
    from collections.abc import Sequence

    from perfscope.hooks.facts.steps import StatedStep, StepFacts, Work
    from perfscope.hooks.recorder import Recorder
    from perfscope.hooks.timers.activities import StepActivities
    from perfscope.hooks.timers.exchanges import RawWaits
    from perfscope.hooks.timers.host_counters import HostCounters, RawCounters

_NO_SAMPLES = (
    "the samples of a step are unknown: several optimizers take turns, the model ran forward for each of them, and no "
    "data loader of torch was used"
)


class ReachedBoundary(NamedTuple):
    """What was seen from one step boundary to the next.

    Attributes:
        end_ns: When it was reached, on the monotonic clock.
        source: What reported it.
        wall_ns: Host time since the boundary before, without saves; absent where that one was not seen.
        window: How it relates to a profiler window.
        stated: What the framework states of the step.
        facts: What was seen in it.
        save_ns: How long checkpoint saves blocked training; absent where none did.
        draining: An asynchronous save was being written.
        activities: What happened besides training.
        gap_ns: Time before the first sign of training; absent where unknown.
        hook_ns: Time that the hooks took.
        counters: The kernel's counters of the thread at the boundary; absent where it has none.
        waits: Waits for other ranks; absent where they are not timed.
    """

    end_ns: int
    source: str
    wall_ns: int | None
    window: str | None
    stated: StatedStep
    facts: StepFacts
    save_ns: int | None
    draining: bool | None
    activities: StepActivities
    gap_ns: int | None
    hook_ns: int
    counters: RawCounters | None = None
    waits: RawWaits | None = None


class StepRows:
    """The boundaries that make the next training steps."""

    def __init__(self, counters: HostCounters) -> None:
        self._counters = counters
        self._waiting: list[ReachedBoundary] = []
        self._is_pending = False
        self._new_notes: list[str] = []
        self._notes: set[str] = set()

    def __len__(self) -> int:
        return len(self._waiting)

    def add(self, boundary: ReachedBoundary) -> None:
        """A boundary was reached."""
        self._waiting.append(boundary)

    def write_pending(self, recorder: Recorder, step: int) -> None:
        """Write the last boundary where it is not lost; ``step`` is its number if none is a part of another one."""
        recorder.write_pending_step(_merge(self._waiting[-1:], step))
        self._is_pending = True

    def write(self, recorder: Recorder, sizes: Sequence[int], last_step: int, **peaks: Any) -> None:
        """Write training steps of so many boundaries each, the oldest first; the number of the last one is given."""
        for step, size in enumerate(sizes, last_step - len(sizes) + 1):
            boundaries = self._waiting[:size]
            del self._waiting[:size]
            recorder.write_step(functools.partial(self._merge, boundaries, step, **peaks))
            if size > 1 and _lacks_samples(boundaries):
                self._new_notes.append(_NO_SAMPLES)
        if self._is_pending:
            self._is_pending = False
            recorder.clear_pending_steps()

    def _merge(self, boundaries: Sequence[ReachedBoundary], step: int, **peaks: Any) -> StepRecord:
        """One training step, made in the order of steps."""
        raw = boundaries[-1].counters
        host, launcher_ns = self._counters.to_work(raw), self._counters.to_launcher_delay(raw)
        return _merge(boundaries, step, host, launcher_delay_ns=launcher_ns, **peaks)

    def pop_notes(self, *further: str) -> list[str]:
        """What a reader must know of the steps, and further texts; each text once, empty ones left out."""
        if not self._new_notes and not any(further):
            return []
        notes = [text for text in dict.fromkeys([*self._new_notes, *further]) if text and text not in self._notes]
        self._new_notes.clear()
        self._notes.update(notes)
        return notes


def _merge(boundaries: Sequence[ReachedBoundary], step: int, host: HostWork | None = None, **read: Any) -> StepRecord:
    """One training step; times, waits and counts of its boundaries are added up."""
    last = boundaries[-1]
    stated, work = last.stated, _work(boundaries)
    micro_batches = sum(
        boundary.facts.pipeline_micro_batches or boundary.facts.micro_batches for boundary in boundaries
    )
    waits_ns = [boundary.facts.data_wait_ns for boundary in boundaries if boundary.facts.has_loader]
    return StepRecord(
        step=step,
        end_ns=last.end_ns,
        source=last.source,
        wall_ns=_sum_all([boundary.wall_ns for boundary in boundaries]),
        window=next((boundary.window for boundary in boundaries if boundary.window), None),
        skipped=any(boundary.stated.skipped for boundary in boundaries) or None,
        micro_batches=stated.micro_batches or micro_batches or None,
        iteration=stated.iteration,
        samples=stated.samples or (work.samples or None if work else None),
        tokens=stated.tokens or (work.tokens or None if work else None),
        global_samples=stated.global_samples,
        data_wait_ns=sum(waits_ns) if waits_ns else None,
        save_ns=sum(boundary.save_ns or 0 for boundary in boundaries) or None,
        draining=any(boundary.draining for boundary in boundaries) or None,
        no_grad_ns=sum(boundary.activities.no_grad_ns for boundary in boundaries) or None,
        gap_ns=boundaries[0].gap_ns,
        spans=tuple(span for boundary in boundaries for span in boundary.activities.spans) or None,
        hook_ns=sum(boundary.hook_ns for boundary in boundaries),
        loss_scale=stated.loss_scale,
        boundaries=len(boundaries) if len(boundaries) > 1 else None,
        memory_peak_bytes=read.get("memory_peak_bytes"),
        memory_reserved_bytes=read.get("memory_reserved_bytes"),
        alloc_retries=read.get("alloc_retries"),
        device_allocs=read.get("device_allocs"),
        ooms=read.get("ooms"),
        probe=read.get("probe"),
        host=host,
        launcher_delay_ns=read.get("launcher_delay_ns"),
        waits=_add_waits(boundaries),
    )


def _add_waits(boundaries: Sequence[ReachedBoundary]) -> HostWaits | None:
    waits = [waits for boundary in boundaries if (waits := to_waits(boundary.waits)) is not None]
    return HostWaits(*map(sum, zip(*waits, strict=True))) if waits else None


def _lacks_samples(boundaries: Sequence[ReachedBoundary]) -> bool:
    """Whether the model ran forward, and nobody can tell on how many samples."""
    work = _work(boundaries)
    is_known = boundaries[-1].stated.samples or (work is not None and work.samples)
    return not is_known and any(boundary.facts.micro_batches for boundary in boundaries)


def _work(boundaries: Sequence[ReachedBoundary]) -> Work | None:
    """The work of a step by the most exact count of it; absent where passes of several optimizers cannot be told apart.

    A round of several optimizers runs forward on the same samples several times, so that there the batches of the data
    loaders count.
    """
    if len(boundaries) == 1:
        return boundaries[0].facts.work
    loaded = boundaries[0].facts.loaded
    for boundary in boundaries[1:]:
        loaded = loaded.with_work(boundary.facts.loaded)
    if loaded.samples:
        return loaded
    with_passes = [boundary.facts for boundary in boundaries if boundary.facts.work.samples]
    return with_passes[0].work if len(with_passes) == 1 else None


def _sum_all(values: Sequence[int | None]) -> int | None:
    """The sum; absent where a part is."""
    known = [value for value in values if value is not None]
    return sum(known) if len(known) == len(values) else None
