"""The records of training steps: one boundary a step, or several where optimizers take turns."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

from perfscope.hooks.step import Work
from perfscope.hooks.timers.activities import NO_ACTIVITIES
from perfscope.hooks.timers.exchanges import to_waits
from perfscope.wire.host import HostWaits
from perfscope.wire.records import to_json_line

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from perfscope.hooks.recorder import Recorder
    from perfscope.hooks.timers.activities import StepActivities
    from perfscope.hooks.timers.exchanges import RawWaits
    from perfscope.hooks.timers.host_counters import HostCounters, RawCounters

_NO_SAMPLES = (
    "the samples of a step are unknown: several optimizers take turns, the model ran forward for each of them, and no "
    "data loader of torch was used"
)
_NOTHING: Mapping[str, Any] = {}


class Special(NamedTuple):
    """What few steps have.

    Attributes:
        window: How the step relates to a profiler window.
        save_ns: How long checkpoint saves blocked training; absent where none did.
        draining: An asynchronous save was being written.
        activities: What happened besides training.
        pipelined: What entered a pipeline, and ``pipeline_micro_batches`` how many micro-batches it ran forward.
        reevaluates: The optimizer ran the model forward several times on the same batch.
    """

    window: str | None = None
    save_ns: int | None = None
    draining: bool | None = None
    activities: StepActivities = NO_ACTIVITIES
    pipelined: Work | None = None
    pipeline_micro_batches: int = 0
    reevaluates: bool = False


NOTHING_SPECIAL = Special()


class Boundary(NamedTuple):
    """What was seen from one step boundary to the next.

    Attributes:
        end_ns: When it was reached, on the monotonic clock.
        source: What reported it.
        started_ns: When the boundary before was left; 0 where that one was not seen.
        sign_ns: When the step first showed that it trains; 0 where it did not.
        hook_ns: Time that the hooks took.
        micro_batches: Forward passes; ``forward`` is what entered them, and ``loaded`` what data loaders handed out.
        data_wait_ns: Time spent waiting for data loaders; absent where none was used.
        stated: What the framework states of the step; see ``Capture.on_step_end``.
        counters: The kernel's counters of the thread at the boundary; absent where they were not read.
        waits: Waits for other ranks; absent where they are not timed.
        special: What few steps have.
    """

    end_ns: int
    source: str
    started_ns: int
    sign_ns: int
    hook_ns: int
    micro_batches: int
    forward: tuple[int, int]
    loaded: tuple[int, int]
    data_wait_ns: int | None
    stated: Mapping[str, Any] | None
    counters: RawCounters | None
    waits: RawWaits | None
    special: Special = NOTHING_SPECIAL

    @property
    def wall_ns(self) -> int | None:
        """Host time since the boundary before, without saves and validation; absent where that one was not seen."""
        other_ns = (self.special.save_ns or 0) + self.special.activities.no_grad_ns
        return self.end_ns - self.started_ns - other_ns if self.started_ns else None

    @property
    def work(self) -> tuple[int, int]:
        """Samples and tokens of the step by the most exact count of them."""
        if self.special.reevaluates and self.loaded[0]:
            return self.loaded
        if self.special.pipelined is not None and self.special.pipelined.samples:
            return self.special.pipelined
        return self.forward if self.forward[0] else self.loaded


class StepRows:
    """The boundaries that make the next training steps."""

    def __init__(self, counters: HostCounters) -> None:
        self._counters = counters
        self._waiting: list[Boundary] = []
        self._note = ""

    def add(self, boundary: Boundary) -> None:
        """A boundary was reached."""
        self._waiting.append(boundary)

    def write(self, recorder: Recorder, sizes: Sequence[int], last_step: int, peaks: Mapping[str, Any]) -> None:
        """Write training steps of so many boundaries each, the oldest first; the number of the last one is given."""
        for step, size in enumerate(sizes, last_step - len(sizes) + 1):
            boundaries = self._waiting[:size]
            del self._waiting[:size]
            recorder.late.add(recorder.steps_file, make_line, step, boundaries, peaks, self._counters)
            if size > 1 and _lacks_samples(boundaries):
                self._note = _NO_SAMPLES

    def pop_note(self) -> str:
        """What a reader must know of the steps; empty for nothing."""
        note, self._note = self._note, ""
        return note


def make_line(
    step: int,
    boundaries: Sequence[Boundary],
    peaks: Mapping[str, Any] | None = None,
    counters: HostCounters | None = None,
) -> bytes:
    """The line of a training step; times, waits and counts of its boundaries are added up.

    Args:
        step: Its number; its fields are those of StepRecord, in that order.
        boundaries: What it is made of.
        peaks: Fields that were read meanwhile.
        counters: Makes differences of the kernel's counters, in the order of steps.
    """
    last, special = boundaries[-1], boundaries[-1].special
    stated, read = last.stated or _NOTHING, peaks or _NOTHING
    is_whole = len(boundaries) == 1
    host = launcher_ns = None
    if counters is not None:
        host, launcher_ns = counters.to_work(last.counters), counters.to_launcher_delay(last.counters)
    # The end itself may be the first sign: it is read after the moment that counts as the end.
    first = boundaries[0]
    gap_ns = min(first.sign_ns, first.end_ns) - first.started_ns if first.started_ns and first.sign_ns else 0
    samples, tokens = last.work if is_whole else _work(boundaries)
    micro_batches = special.pipeline_micro_batches or last.micro_batches
    data_wait_ns, hook_ns, wall_ns = last.data_wait_ns, last.hook_ns, last.wall_ns
    waits = None if last.waits is None else to_waits(last.waits)
    if not is_whole:
        micro_batches = sum(each.special.pipeline_micro_batches or each.micro_batches for each in boundaries)
        walls_ns = [each.wall_ns for each in boundaries]
        wall_ns = None if None in walls_ns else sum(known for known in walls_ns if known is not None)
        known_ns = [each.data_wait_ns for each in boundaries if each.data_wait_ns is not None]
        data_wait_ns = sum(known_ns) if known_ns else None
        hook_ns = sum(each.hook_ns for each in boundaries)
        all_waits = [found for each in boundaries if (found := to_waits(each.waits)) is not None]
        waits = HostWaits(*map(sum, zip(*all_waits, strict=True))) if all_waits else None
    fields = {
        "step": step,
        "end_ns": last.end_ns,
        "source": last.source,
        "wall_ns": wall_ns,
        "window": None,
        "skipped": stated.get("skipped") or None,
        "micro_batches": stated.get("micro_batches") or micro_batches or None,
        "samples": stated.get("samples") or samples or None,
        "tokens": stated.get("tokens") or tokens or None,
        "global_samples": stated.get("global_samples"),
        "data_wait_ns": data_wait_ns,
        "save_ns": None,
        "draining": None,
        "no_grad_ns": None,
        "gap_ns": gap_ns if gap_ns > 0 else None,
        "spans": None,
        "hook_ns": hook_ns,
        "loss_scale": stated.get("loss_scale"),
        "iteration": stated.get("iteration"),
        "memory_peak_bytes": read.get("memory_peak_bytes"),
        "memory_reserved_bytes": read.get("memory_reserved_bytes"),
        "boundaries": None if is_whole else len(boundaries),
        "alloc_retries": read.get("alloc_retries"),
        "device_allocs": read.get("device_allocs"),
        "ooms": read.get("ooms"),
        "probe": read.get("probe"),
        "host": host,
        "launcher_delay_ns": launcher_ns,
        "waits": waits,
    }
    if not (is_whole and special is NOTHING_SPECIAL):
        fields |= _special_fields(boundaries)
    return to_json_line(fields)


def _special_fields(boundaries: Sequence[Boundary]) -> dict[str, Any]:
    specials = [each.special for each in boundaries]
    return {
        "window": next((special.window for special in specials if special.window), None),
        "skipped": any((each.stated or _NOTHING).get("skipped") for each in boundaries) or None,
        "save_ns": sum(special.save_ns or 0 for special in specials) or None,
        "draining": any(special.draining for special in specials) or None,
        "no_grad_ns": sum(special.activities.no_grad_ns for special in specials) or None,
        "spans": tuple(span for special in specials for span in special.activities.spans) or None,
    }


def _lacks_samples(boundaries: Sequence[Boundary]) -> bool:
    """Whether the model ran forward, and nobody can tell on how many samples."""
    is_known = (boundaries[-1].stated or _NOTHING).get("samples") or _work(boundaries)[0]
    return not is_known and any(boundary.micro_batches for boundary in boundaries)


def _work(boundaries: Sequence[Boundary]) -> tuple[int, int]:
    """Samples and tokens of a round of several optimizers; 0 where their passes cannot be told apart.

    A round runs forward on the same samples several times, so that there the batches of the data loaders count.
    """
    loaded = [sum(numbers) for numbers in zip(*(boundary.loaded for boundary in boundaries), strict=True)]
    if loaded[0]:
        return loaded[0], loaded[1]
    with_passes = [boundary.work for boundary in boundaries if boundary.work[0]]
    return with_passes[0] if len(with_passes) == 1 else (0, 0)
