"""What ``benchmarks.overhead`` measured, line by line, beside the limits that the project promises.

``python -m benchmarks.overhead_limits FILE.json`` prints a table of reports/h200-overhead.md.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple, TypeAlias

from tabulate import tabulate

from perfscope.constants import MS_PER_S, US_PER_S

#: The limits.
OUTSIDE_PERCENT, WINDOW_PERCENT, STALL_RATIO, MEMORY_MB, GROWTH_MB = 0.3, 2.0, 0.5, 20.0, 5.0
AFTER_PERCENT, HOOKS_US = 1.0, 50.0
#: Standard errors below which a change is not measurable.
_NOISE = 3.0
_YES_NO = {True: "yes", False: "no"}
_HEADINGS = ("Measurement", "With perfscope", "Baseline", "Difference", "Limit", "Within limit")

_Figures: TypeAlias = Mapping[str, Any]


class OverheadLine(NamedTuple):
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


def document(path: Path) -> str:
    """The table of one file, and the machine that it was measured on."""
    figures = json.loads(path.read_text())
    rows = [[None if cell == "" else cell for cell in line] for line in compare_with_limits(figures)]
    machine = ", ".join(map(str, figures["machine"].values()))
    note = f"On {machine}. Medians; perfscope and the baseline take turns in one run."
    return f"{tabulate(rows, _HEADINGS, tablefmt='pipe', floatfmt='.2f', missingval='n/a')}\n\n{note}\n"


def compare_with_limits(figures: _Figures) -> list[OverheadLine]:
    """What was measured, line by line, beside the limits; absent parts were not measured."""
    lines = [line for kind, part in figures.get("processes", {}).items() for line in _process_lines(kind, part)]
    if behind := figures.get("behind"):
        lines += _behind_lines(behind)
    if outside := figures.get("outside"):
        lines.append(_step_line("step outside windows (ms)", outside, OUTSIDE_PERCENT))
    if window := figures.get("window"):
        lines += [_step_line("step in a window (ms)", window, WINDOW_PERCENT), *_stall_lines(window)]
    if after := figures.get("after"):
        before_ms = outside.get("bare_median_ms") if outside else None
        name = "steady-state step after all windows, and before them (ms)"
        lines.append(OverheadLine(name, after["median_ms"], before_ms, f"{after['change_percent']:+.2f} %"))
    if nvml := figures.get("nvml"):
        name = f"step beside the NVML sampler at 5 Hz, {nvml['samples']} samples (ms)"
        kept = _YES_NO[nvml["change_percent"] <= _NOISE * nvml["error_percent"]]
        lines.append(
            OverheadLine(name, *_times(nvml, "median_ms"), _describe(nvml), "none measurable", kept),
        )
    if memory := figures.get("memory"):
        more_mb = memory["more_mb"]
        within = _YES_NO[more_mb <= MEMORY_MB]
        lines.append(
            OverheadLine(
                "RSS outside windows (MB)", *_times(memory, "mb"), f"{more_mb:+.1f} MB", f"{MEMORY_MB:.0f} MB", within
            )
        )
    if growth := figures.get("growth"):
        name = f"RSS growth over the last 90 % of {growth['windows']} windows (MB)"
        within = _YES_NO[growth["mb"] <= GROWTH_MB]
        lines.append(OverheadLine(name, *_times(growth, "mb"), "", f"{GROWTH_MB:.0f} MB", within))
    return lines


def _times(figures: _Figures, name: str) -> tuple[float | None, float | None]:
    return figures.get(name), figures.get(f"bare_{name}")


def _judge(change_percent: float, limit_percent: float, *, is_shown: bool) -> str:
    return _YES_NO[change_percent <= limit_percent] if is_shown else "not shown"


def _describe(change: _Figures) -> str:
    error = change["error_percent"]
    return f"{change['change_percent']:+.2f} %" + ("" if error is None else f" (standard error {error:.2f})")


def _process_lines(kind: str, part: _Figures) -> Iterator[OverheadLine]:
    change, hooks_us = part["change_percent"], part["hooks_mean_us"]
    hook_share = hooks_us / US_PER_S * MS_PER_S / part["before_ms"]
    verdict = _judge(change, AFTER_PERCENT, is_shown=part["error_percent"] <= AFTER_PERCENT)
    name = f"{kind} step behind a window, {part['rounds']} processes of each (ms)"
    yield OverheadLine(name, *_times(part, "after_ms"), _describe(part), f"{AFTER_PERCENT} %", verdict)
    yield OverheadLine("... ahead of the window (ms)", *_times(part, "before_ms"))
    yield OverheadLine(
        "... hooks in a step outside windows, median (us)",
        part["hooks_us"],
        None,
        f"mean {hooks_us:.0f} us, {hook_share:.2%}",
        f"{HOOKS_US:.0f} us and {OUTSIDE_PERCENT} %",
        _YES_NO[hooks_us <= HOOKS_US and 100 * hook_share <= OUTSIDE_PERCENT],
    )
    bare_ms = part["bare_before_ms"]
    yield OverheadLine("... in the window (ms)", part["window_ms"], bare_ms, f"{part['window_ms'] / bare_ms - 1:+.1%}")
    yield OverheadLine("... stall by start and end of the window (ms)", part["stall_ms"], None)


def _behind_lines(behind: _Figures) -> Iterator[OverheadLine]:
    error = behind["error_percent"]
    is_shown = error is not None and error <= AFTER_PERCENT / 2
    verdict = _judge(behind["change_percent"], AFTER_PERCENT, is_shown=is_shown)
    name = f"host-bound step behind a window, {behind['pairs']} pairs on the same cores (ms)"
    yield OverheadLine(name, *_times(behind, "after_ms"), _describe(behind), f"{AFTER_PERCENT} %", verdict)
    name = f"... ahead of the window; {behind['steps']:,} steps of each process (ms)"
    yield OverheadLine(name, *_times(behind, "before_ms"))
    if profiler := behind.get("profiler"):
        name = f"... the same behind a bare torch.profiler, {profiler['pairs']} pairs"
        yield OverheadLine(name, None, None, _describe(profiler))


def _step_line(measurement: str, change: _Figures, limit_percent: float) -> OverheadLine:
    is_shown = change["error_percent"] <= limit_percent
    verdict = _judge(change["change_percent"], limit_percent, is_shown=is_shown)
    return OverheadLine(measurement, *_times(change, "median_ms"), _describe(change), f"{limit_percent} %", verdict)


def _stall_lines(window: _Figures) -> Iterator[OverheadLine]:
    ours, bare, ratio = window["ours"], window["bare"], window["stall_ratio"]

    def in_ms(part: str, *, both: bool = True) -> tuple[float, float | None]:
        return MS_PER_S * ours[part], MS_PER_S * bare[part] if both else None

    verdict = _YES_NO[ratio <= STALL_RATIO]
    name = "stall at a window's end (ms)"
    yield OverheadLine(name, *in_ms("stall"), f"{ratio:.2f} times", f"{STALL_RATIO} times", verdict)
    yield OverheadLine("... stop, which collects the events (ms)", *in_ms("stop"))
    yield OverheadLine(f"... export of {ours['trace_mb']:.0f} MB, bare to .json.gz (ms)", *in_ms("export"))
    yield OverheadLine("... release of the memory (ms)", *in_ms("release", both=False))
    yield OverheadLine("start of a window (ms)", *in_ms("start", both=False))


if __name__ == "__main__":
    print(document(Path(sys.argv[1])), end="")
