"""The rows of numbers that quick hooks put into a queue, as lines of a file."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from perfscope.hooks.timers.exchanges import to_waits
from perfscope.wire.host import HostWaits, HostWork
from perfscope.wire.step_lines import to_step_line, to_text

if TYPE_CHECKING:
    from collections.abc import Mapping

    from perfscope.hooks.timers.exchanges import RawWaits
    from perfscope.hooks.timers.host_counters import HostCounters, RawCounters

_NONE = ""
_MICRO_BATCHES, _SAMPLES, _TOKENS = ',"micro_batches":', ',"samples":', ',"tokens":'
_DATA_WAIT_NS, _GAP_NS = ',"data_wait_ns":', ',"gap_ns":'
_HOST = f',"host":[{",".join(["%d"] * len(HostWork._fields))}]'
_LAUNCHER_DELAY_NS = ',"launcher_delay_ns":'
_WAITS = f',"waits":[{",".join(["%d"] * len(HostWaits._fields))}]'


def make_line(
    step: int,
    end_ns: int,
    source: str,
    times: tuple[int, int | None, int],
    counts: tuple[int, int, int],
    loaded: tuple[int, int, int | None],
    stated: Mapping[str, Any] | None,
    peaks: Mapping[str, Any] | None,
    host: tuple[RawCounters | None, RawWaits | None] = (None, None),
    counters: HostCounters | None = None,
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
        host: The kernel's counters of the thread at the end of the step, and the step's waits.
        counters: Makes differences of the counters.
    """
    began_ns, sign_ns, hook_ns = times
    micro_batches, samples, tokens = counts
    if not samples:  # what went into the model is counted, or else what data loaders handed out
        samples, tokens = loaded[0], loaded[1]
    # The end itself may be the first sign: it is read after the moment that counts as the end.
    gap_ns = None
    if sign_ns is not None and sign_ns > began_ns:
        gap_ns = (sign_ns if sign_ns < end_ns else end_ns) - began_ns
    work = launcher_ns = None
    if counters is not None:
        raw = host[0]
        work = counters.to_work(raw)
        if raw is not None and raw[3]:  # most steps read nothing: no call then
            launcher_ns = counters.to_launcher_delay(raw)
    waits = None if host[1] is None else to_waits(host[1])
    if not stated:  # one text, because this runs for every step in a thread that holds the interpreter
        return (
            f'{{"step":{step},"end_ns":{end_ns},"source":"{source}","wall_ns":{end_ns - began_ns}'
            f"{_MICRO_BATCHES + str(micro_batches) if micro_batches else _NONE}"
            f"{_SAMPLES + str(samples) if samples else _NONE}"
            f"{_TOKENS + str(tokens) if tokens else _NONE}"
            f"{_NONE if loaded[2] is None else _DATA_WAIT_NS + str(loaded[2])}"
            f"{_NONE if gap_ns is None else _GAP_NS + str(gap_ns)}"
            f',"hook_ns":{hook_ns}'
            f"{to_text(peaks.items()) if peaks else _NONE}"
            f"{_NONE if work is None else _HOST % work}"
            f"{_NONE if launcher_ns is None else _LAUNCHER_DELAY_NS + str(launcher_ns)}"
            f"{_NONE if waits is None else _WAITS % waits}"
            "}\n"
        ).encode()
    return _make_stated_line(
        step, end_ns, source, end_ns - began_ns, stated, ((micro_batches, samples, tokens), loaded[2], gap_ns, hook_ns),
        (*(peaks.items() if peaks else ()), ("host", work), ("launcher_delay_ns", launcher_ns), ("waits", waits)),
    )  # fmt: skip


def _make_stated_line(
    step: int,
    end_ns: int,
    source: str,
    wall_ns: int,
    stated: Mapping[str, Any],
    measured: tuple[tuple[int, int, int], int | None, int | None, int],
    others: tuple[tuple[str, object], ...],
) -> bytes:
    """The line of a step of which a framework states something, which comes before what was counted."""
    (micro_batches, samples, tokens), wait_ns, gap_ns, hook_ns = measured
    fields = (
        ("skipped", stated.get("skipped") or None),
        ("micro_batches", stated.get("micro_batches") or micro_batches or None),
        ("samples", stated.get("samples") or samples or None),
        ("tokens", stated.get("tokens") or tokens or None),
        ("global_samples", stated.get("global_samples")),
        ("data_wait_ns", wait_ns),
        ("gap_ns", gap_ns),
        ("hook_ns", hook_ns),
        ("loss_scale", stated.get("loss_scale")),
        ("iteration", stated.get("iteration")),
    )
    return to_step_line(step, end_ns, source, wall_ns, (*fields, *others))
