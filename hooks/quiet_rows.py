"""The rows of numbers that quick hooks put into a queue, as lines of a file."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from perfscope.hooks.timers.exchanges import to_waits
from perfscope.wire.step_lines import to_step_line

if TYPE_CHECKING:
    from collections.abc import Mapping

    from perfscope.hooks.timers.exchanges import RawWaits
    from perfscope.hooks.timers.host_counters import HostCounters, RawCounters

_NOTHING: Mapping[str, Any] = {}


def make_line(
    step: int,
    end_ns: int,
    source: str,
    times: tuple[int, int | None, int],
    counts: tuple[int, int, int],
    loaded: tuple[int, int, int | None],
    stated: Mapping[str, Any] | None,
    peaks: Mapping[str, Any] | None,
    host: tuple[HostCounters, RawCounters | None, RawWaits | None] | None = None,
) -> bytes:
    """The line of a step from its row in the queue.

    Args:
        step: Its number; ``end_ns`` is when it ended, and ``source`` what reported that.
        end_ns: On the monotonic clock.
        source: A step boundary.
        times: When it began, when it first showed that it trains, and the time that hooks took.
        counts: Forward passes, and the samples and tokens in them.
        loaded: Samples and tokens of data loaders, and the wait for them.
        stated: Fields of StatedStep.
        peaks: Fields of StepRecord about memory, in its order, where they were read meanwhile.
        host: The counters of the thread, what they were at the end of the step, and the step's waits.
    """
    began_ns, sign_ns, hook_ns = times
    micro_batches, samples, tokens = counts
    if not samples:  # what went into the model is counted, or else what data loaders handed out
        samples, tokens = loaded[:2]
    stated, peaks = stated or _NOTHING, peaks or _NOTHING
    # The end itself may be the first sign: it is read after the moment that counts as the end.
    gap_ns = min(sign_ns, end_ns) - began_ns if sign_ns is not None and sign_ns > began_ns else None
    fields = (
        ("skipped", stated.get("skipped") or None),
        ("micro_batches", stated.get("micro_batches") or micro_batches or None),
        ("samples", stated.get("samples") or samples or None),
        ("tokens", stated.get("tokens") or tokens or None),
        ("global_samples", stated.get("global_samples")),
        ("data_wait_ns", loaded[2]),
        ("gap_ns", gap_ns),
        ("hook_ns", hook_ns),
        ("loss_scale", stated.get("loss_scale")),
        ("iteration", stated.get("iteration")),
        *peaks.items(),
        *(_host_fields(*host) if host is not None else ()),
    )
    return to_step_line(step, end_ns, source, end_ns - began_ns, fields)


def _host_fields(
    counters: HostCounters, raw: RawCounters | None, waits: RawWaits | None
) -> tuple[tuple[str, object], ...]:
    return ("host", counters.to_work(raw)), ("waits", to_waits(waits))
