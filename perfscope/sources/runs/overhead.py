"""The overhead that ``benchmarks/overhead.py`` measured, compared with the limits that the project promises."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import msgspec

from perfscope.constants import MS_PER_S, US_PER_S
from perfscope.errors import SourceError
from perfscope.files import read_text

#: The limits.
OUTSIDE_PERCENT, WINDOW_PERCENT, STALL_RATIO, MEMORY_MB, GROWTH_MB = 0.3, 2.0, 0.5, 20.0, 5.0
AFTER_PERCENT, HOOKS_US = 1.0, 50.0
_YES_NO = {True: "yes", False: "no"}
#: Standard errors below which a change is not measurable.
_NOISE = 3.0


@dataclass(frozen=True, slots=True)
class OverheadLine:
    """One measurement with perfscope and without.

    Attributes:
        measurement: What was measured, with its unit.
        perfscope, baseline: With perfscope and without; absent where there is no such thing.
        difference: By how much they differ, in words; empty for a part of the line above.
        limit: The largest difference allowed, in words; empty where nothing is promised.
        within_limit: ``yes``, ``no``, or ``not shown`` where the noise is larger than the limit; empty without a limit.
    """

    measurement: str
    perfscope: float | None
    baseline: float | None
    difference: str = ""
    limit: str = ""
    within_limit: str = ""

    def data(self) -> dict[str, str | float | None]:
        """The line for JSON."""
        return {
            "what": self.measurement,
            "ours": self.perfscope,
            "bare": self.baseline,
            "difference": self.difference,
            "limit": self.limit,
            "kept": self.within_limit,
        }


class _Change(msgspec.Struct):
    """A step with perfscope and without, in turn; absent times were not recorded."""

    change_percent: float
    error_percent: float
    median_ms: float | None = None
    bare_median_ms: float | None = None


class _Sampling(_Change, kw_only=True):
    """A step beside the NVML sampler."""

    samples: int


class _BareStall(msgspec.Struct):
    """Seconds that the end of a bare profiler's window takes."""

    stall: float
    stop: float
    export: float


class _Stall(_BareStall):
    """Seconds that the start and the end of our window take, and the size of its trace."""

    release: float
    start: float
    trace_mb: float


class _Windows(_Change, kw_only=True):
    """Steps in windows."""

    ours: _Stall
    bare: _BareStall
    stall_ratio: float


class _After(msgspec.Struct):
    """Steps after all windows."""

    median_ms: float
    change_percent: float


class _Memory(msgspec.Struct):
    """Memory of a process with perfscope and without."""

    mb: float
    bare_mb: float
    more_mb: float


class _Growth(msgspec.Struct):
    """Growth of the memory over many windows."""

    windows: int
    mb: float
    bare_mb: float


class _Processes(msgspec.Struct):
    """One kind of training in whole processes, with perfscope and without, in turn.

    Attributes:
        rounds: Processes of each.
        before_ms, after_ms: Median step ahead of a window and behind it; ``bare_`` are the same steps of the others.
        change_percent, error_percent: By how much more the steps behind the window took of those ahead of it than
            without perfscope, and its standard error.
        hooks_us, hooks_mean_us: Time of the hooks in a step outside windows, median and mean.
        window_ms: Median step in the window.
        stall_ms: How long start and end of the window stalled training.
    """

    rounds: int
    before_ms: float
    bare_before_ms: float
    after_ms: float
    bare_after_ms: float
    change_percent: float
    error_percent: float
    hooks_us: float
    hooks_mean_us: float
    window_ms: float
    stall_ms: float


class _PairedChange(msgspec.Struct):
    """By how much a window changed the steps behind it, over pairs of processes; no error of a single pair."""

    pairs: int
    change_percent: float
    error_percent: float | None


class _Behind(_PairedChange, kw_only=True):
    """Pairs of a captured process and a bare one, in turn on the same cores.

    Attributes:
        steps: Steps that count of each process, ahead of the window and behind it.
        before_ms, after_ms: Median step ahead of the window and behind it; ``bare_`` are those of the other processes.
        profiler: The same where the window is one of a bare torch.profiler.
    """

    steps: int
    before_ms: float
    bare_before_ms: float
    after_ms: float
    bare_after_ms: float
    profiler: _PairedChange | None = None


class OverheadRecord(msgspec.Struct):
    """What the benchmark measured; absent parts were not measured.

    Attributes:
        machine: Where it ran.
        processes: Whole processes, by the kind of training.
        behind: Steps behind a window, by pairs of processes.
        outside, window, after, memory, growth: Inside one loop.
        nvml: The same beside the sampler.
    """

    machine: dict[str, object]
    processes: dict[str, _Processes] = {}
    behind: _Behind | None = None
    outside: _Change | None = None
    window: _Windows | None = None
    after: _After | None = None
    memory: _Memory | None = None
    growth: _Growth | None = None
    nvml: _Sampling | None = None


def read_overhead(path: Path) -> tuple[str, tuple[OverheadLine, ...]]:
    """The machine that the benchmark ran on, and its lines.

    Raises:
        SourceError: The file was not written by the benchmark.
    """
    content = read_text(path).encode("utf-8", "surrogateescape")
    try:
        record = msgspec.json.decode(content, type=OverheadRecord)
    except (ValueError, RecursionError):
        record = OverheadRecord({})
    if not (record.processes or record.outside or record.behind):
        raise SourceError(path, "was not written by `python -m benchmarks.overhead --json`")
    return ", ".join(str(fact) for fact in record.machine.values()), compare_with_limits(record)


def compare_with_limits(record: OverheadRecord) -> tuple[OverheadLine, ...]:
    """What was measured, line by line, beside the limits."""
    lines = [line for kind, processes in record.processes.items() for line in _process_lines(kind, processes)]
    lines += _behind_lines(record.behind)
    if record.outside is not None:
        lines.append(_step_line("step outside windows (ms)", record.outside, OUTSIDE_PERCENT))
    if record.window is not None:
        lines += [_step_line("step in a window (ms)", record.window, WINDOW_PERCENT), *_stall_lines(record.window)]
    if record.after is not None:
        lines.append(
            OverheadLine(
                "steady-state step after all windows, and before them (ms)",
                record.after.median_ms,
                record.outside.bare_median_ms if record.outside else None,
                f"{record.after.change_percent:+.2f} %",
            )
        )
    return (*lines, *_nvml_lines(record.nvml), *_memory_lines(record.memory, record.growth))


def _process_lines(kind: str, processes: _Processes) -> tuple[OverheadLine, ...]:
    slowdown = processes.window_ms / processes.bare_before_ms - 1
    hook_share = processes.hooks_mean_us / US_PER_S * MS_PER_S / processes.before_ms
    is_shown = processes.error_percent <= AFTER_PERCENT
    return (
        OverheadLine(
            f"{kind} step behind a window, {processes.rounds} processes of each (ms)",
            processes.after_ms,
            processes.bare_after_ms,
            f"{processes.change_percent:+.2f} % (standard error {processes.error_percent:.2f})",
            f"{AFTER_PERCENT} %",
            _YES_NO[processes.change_percent <= AFTER_PERCENT] if is_shown else "not shown",
        ),
        OverheadLine("... ahead of the window (ms)", processes.before_ms, processes.bare_before_ms),
        OverheadLine(
            "... hooks in a step outside windows, median (us)",
            processes.hooks_us,
            None,
            f"mean {processes.hooks_mean_us:.0f} us, {hook_share:.2%}",
            f"{HOOKS_US:.0f} us and {OUTSIDE_PERCENT} %",
            _YES_NO[processes.hooks_mean_us <= HOOKS_US and 100 * hook_share <= OUTSIDE_PERCENT],
        ),
        OverheadLine("... in the window (ms)", processes.window_ms, processes.bare_before_ms, f"{slowdown:+.1%}"),
        OverheadLine("... stall by start and end of the window (ms)", processes.stall_ms, None),
    )


def _behind_lines(behind: _Behind | None) -> tuple[OverheadLine, ...]:
    if behind is None:
        return ()
    is_shown = behind.error_percent is not None and behind.error_percent <= AFTER_PERCENT / 2
    lines = [
        OverheadLine(
            f"host-bound step behind a window, {behind.pairs} pairs on the same cores (ms)",
            behind.after_ms,
            behind.bare_after_ms,
            _describe_paired(behind),
            f"{AFTER_PERCENT} %",
            _YES_NO[behind.change_percent <= AFTER_PERCENT] if is_shown else "not shown",
        ),
        OverheadLine(
            f"... ahead of the window; {behind.steps:,} steps of each process (ms)",
            behind.before_ms,
            behind.bare_before_ms,
        ),
    ]
    if behind.profiler is not None:
        what = f"... the same behind a bare torch.profiler, {behind.profiler.pairs} pairs"
        lines.append(OverheadLine(what, None, None, _describe_paired(behind.profiler)))
    return tuple(lines)


def _describe_paired(change: _PairedChange) -> str:
    error = "" if change.error_percent is None else f" (standard error {change.error_percent:.2f})"
    return f"{change.change_percent:+.2f} %{error}"


def _memory_lines(memory: _Memory | None, growth: _Growth | None) -> tuple[OverheadLine, ...]:
    lines = []
    if memory is not None:
        lines.append(
            OverheadLine(
                "RSS outside windows (MB)",
                memory.mb,
                memory.bare_mb,
                f"{memory.more_mb:+.1f} MB",
                f"{MEMORY_MB:.0f} MB",
                _YES_NO[memory.more_mb <= MEMORY_MB],
            )
        )
    if growth is not None:
        lines.append(
            OverheadLine(
                f"RSS growth over the last 90 % of {growth.windows} windows (MB)",
                growth.mb,
                growth.bare_mb,
                "",
                f"{GROWTH_MB:.0f} MB",
                _YES_NO[growth.mb <= GROWTH_MB],
            )
        )
    return tuple(lines)


def _step_line(measurement: str, change: _Change, limit_percent: float) -> OverheadLine:
    shown = change.error_percent <= limit_percent
    return OverheadLine(
        measurement,
        change.median_ms,
        change.bare_median_ms,
        _describe(change),
        f"{limit_percent} %",
        _YES_NO[change.change_percent <= limit_percent] if shown else "not shown",
    )


def _describe(change: _Change) -> str:
    return f"{change.change_percent:+.2f} % (standard error {change.error_percent:.2f})"


def _stall_lines(window: _Windows) -> tuple[OverheadLine, ...]:
    ours, bare, ratio = window.ours, window.bare, window.stall_ratio
    return (
        OverheadLine(
            "stall at a window's end (ms)",
            MS_PER_S * ours.stall,
            MS_PER_S * bare.stall,
            f"{ratio:.2f} times",
            f"{STALL_RATIO} times",
            _YES_NO[ratio <= STALL_RATIO],
        ),
        OverheadLine("... stop, which collects the events (ms)", MS_PER_S * ours.stop, MS_PER_S * bare.stop),
        OverheadLine(
            f"... export of {ours.trace_mb:.0f} MB, bare to .json.gz (ms)",
            MS_PER_S * ours.export,
            MS_PER_S * bare.export,
        ),
        OverheadLine("... release of the memory (ms)", MS_PER_S * ours.release, None),
        OverheadLine("start of a window (ms)", MS_PER_S * ours.start, None),
    )


def _nvml_lines(nvml: _Sampling | None) -> tuple[OverheadLine, ...]:
    if nvml is None:
        return ()
    return (
        OverheadLine(
            f"step beside the NVML sampler at 5 Hz, {nvml.samples} samples (ms)",
            nvml.median_ms,
            nvml.bare_median_ms,
            _describe(nvml),
            "none measurable",
            _YES_NO[nvml.change_percent <= _NOISE * nvml.error_percent],
        ),
    )
