"""The records of training steps: one boundary a step, or several where optimizers take turns."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

from perfscope.hooks.timers.activities import NO_ACTIVITIES
from perfscope.hooks.timers.exchanges import to_waits
from perfscope.wire.host import HostWaits
from perfscope.wire.records import to_json_line

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from perfscope.hooks.step import BatchWork
    from perfscope.hooks.timers.activities import StepActivities
    from perfscope.hooks.timers.exchanges import RawWaits
    from perfscope.hooks.timers.host_counters import HostCounters, RawCounters

_NOTHING: Mapping[str, Any] = {}


class Boundary(NamedTuple):
    """What was seen from one step boundary to the next, on the monotonic clock; see ``StepAccumulator``.

    Attributes:
        started_ns: When the boundary before was left; 0 where that one was not seen.
        forward: Samples and tokens that entered forward passes; ``loaded``: those that data loaders handed out.
        data_wait_ns: Absent where no data loader was used.
        stated: What the framework states of the step; see ``Capture.on_step_end``.
        window: How the step relates to a profiler window; this and what follows are absent in most steps.
        save_ns: How long checkpoint saves blocked training; ``draining``: an asynchronous one was being written.
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
    window: str | None = None
    save_ns: int | None = None
    draining: bool | None = None
    activities: StepActivities = NO_ACTIVITIES
    pipelined: BatchWork | None = None
    reevaluates: bool = False

    @property
    def wall_ns(self) -> int | None:
        """Host time since the boundary before, without saves and validation; absent where that one was not seen."""
        other_ns = (self.save_ns or 0) + self.activities.no_grad_ns
        return self.end_ns - self.started_ns - other_ns if self.started_ns else None

    @property
    def work(self) -> tuple[int, int]:
        """Samples and tokens of the step by the most exact count of them."""
        if self.reevaluates and self.loaded[0]:
            return self.loaded
        if self.pipelined is not None and self.pipelined.samples:
            return self.pipelined
        return self.forward if self.forward[0] else self.loaded


def make_line(
    step: int,
    boundaries: Sequence[Boundary],
    peaks: Mapping[str, Any] | None = None,
    counters: HostCounters | None = None,
) -> bytes:
    """The line of a training step, as StepRecord's; times, waits and counts of its boundaries are added up.

    ``peaks`` are fields that were read meanwhile; ``counters`` makes differences, in the order of steps.
    """
    first, last = boundaries[0], boundaries[-1]
    states, read = [each.stated or _NOTHING for each in boundaries], peaks or _NOTHING
    stated = states[-1]
    host = launcher_ns = None
    if counters is not None:
        host, launcher_ns = counters.to_work(last.counters), counters.to_launcher_delay(last.counters)
    # The end itself may be the first sign: it is read after the moment that counts as the end.
    gap_ns = min(first.sign_ns, first.end_ns) - first.started_ns if first.started_ns and first.sign_ns else 0
    samples, tokens = count_work(boundaries)
    walls_ns = [wall_ns for each in boundaries if (wall_ns := each.wall_ns) is not None]
    data_waits_ns = [each.data_wait_ns for each in boundaries if each.data_wait_ns is not None]
    waits = [found for each in boundaries if (found := to_waits(each.waits)) is not None]
    return to_json_line(
        {
            "step": step,
            "end_ns": last.end_ns,
            "source": last.source,
            "wall_ns": sum(walls_ns) if len(walls_ns) == len(boundaries) else None,
            "window": next((each.window for each in boundaries if each.window), None),
            "skipped": any(each.get("skipped") for each in states) or None,
            "micro_batches": stated.get("micro_batches") or sum(each.micro_batches for each in boundaries) or None,
            "samples": stated.get("samples") or samples or None,
            "tokens": stated.get("tokens") or tokens or None,
            "global_samples": stated.get("global_samples"),
            "data_wait_ns": sum(data_waits_ns) if data_waits_ns else None,
            "save_ns": sum(each.save_ns or 0 for each in boundaries) or None,
            "draining": any(each.draining for each in boundaries) or None,
            "no_grad_ns": sum(each.activities.no_grad_ns for each in boundaries) or None,
            "gap_ns": gap_ns if gap_ns > 0 else None,
            "spans": tuple(span for each in boundaries for span in each.activities.spans) or None,
            "hook_ns": sum(each.hook_ns for each in boundaries),
            "loss_scale": stated.get("loss_scale"),
            "iteration": stated.get("iteration"),
            "memory_peak_bytes": read.get("memory_peak_bytes"),
            "boundaries": len(boundaries) if len(boundaries) > 1 else None,
            "alloc_retries": read.get("alloc_retries"),
            "device_allocs": read.get("device_allocs"),
            "probe": read.get("probe"),
            "host": host,
            "launcher_delay_ns": launcher_ns,
            "waits": HostWaits(*map(sum, zip(*waits, strict=True))) if waits else None,
        }
    )


def count_work(boundaries: Sequence[Boundary]) -> tuple[int, int]:
    """Samples and tokens of a step; 0 where the passes of several optimizers cannot be told apart.

    A round of several runs forward on the same samples several times, so that there the batches of the loaders count.
    """
    if len(boundaries) == 1:
        return boundaries[0].work
    loaded = [sum(numbers) for numbers in zip(*(boundary.loaded for boundary in boundaries), strict=True)]
    if loaded[0]:
        return loaded[0], loaded[1]
    with_passes = [boundary.work for boundary in boundaries if boundary.work[0]]
    return with_passes[0] if len(with_passes) == 1 else (0, 0)
