"""The overhead that ``benchmarks/overhead.py`` measured, compared with the limits that the project promises."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from perfscope.constants import MS_PER_S
from perfscope.errors import SourceError
from perfscope.files import read_text

#: The limits.
OUTSIDE_PERCENT, WINDOW_PERCENT, STALL_RATIO, MEMORY_MB, GROWTH_MB = 0.3, 2.0, 0.5, 20.0, 5.0
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


def read_overhead(path: Path) -> tuple[str, tuple[OverheadLine, ...]]:
    """The machine that the benchmark ran on, and its lines.

    Raises:
        SourceError: The file was not written by the benchmark.
    """
    try:
        measured = json.loads(read_text(path))
        return ", ".join(str(fact) for fact in measured["machine"].values()), compare_with_limits(measured)
    except (ValueError, KeyError, TypeError, RecursionError):
        raise SourceError(path, "was not written by `python -m benchmarks.overhead --json`") from None


def compare_with_limits(measured: Mapping[str, Any]) -> tuple[OverheadLine, ...]:
    """The lines of a record of the benchmark; its keys are checked by the reader."""
    memory, growth = measured["memory"], measured["growth"]
    added_mb, grown_mb = memory["more_mb"], growth["mb"]
    return (
        _step_line("step outside windows (ms)", measured["outside"], OUTSIDE_PERCENT),
        _step_line("step in a window (ms)", measured["window"], WINDOW_PERCENT),
        *_stall_lines(measured["window"]),
        OverheadLine(
            "steady-state step after all windows, and before them (ms)",
            measured["after"]["median_ms"],
            measured["outside"]["bare_median_ms"],
            f"{measured['after']['change_percent']:+.2f} %",
        ),
        *_nvml_lines(measured.get("nvml")),
        OverheadLine(
            "RSS outside windows (MB)",
            memory["mb"],
            memory["bare_mb"],
            f"{added_mb:+.1f} MB",
            f"{MEMORY_MB:.0f} MB",
            _YES_NO[added_mb <= MEMORY_MB],
        ),
        OverheadLine(
            f"RSS growth over the last 90 % of {growth['windows']} windows (MB)",
            grown_mb,
            growth["bare_mb"],
            "",
            f"{GROWTH_MB:.0f} MB",
            _YES_NO[grown_mb <= GROWTH_MB],
        ),
    )


def _step_line(measurement: str, compared: Mapping[str, Any], limit_percent: float) -> OverheadLine:
    change, error = compared["change_percent"], compared["error_percent"]
    return OverheadLine(
        measurement,
        compared["median_ms"],
        compared["bare_median_ms"],
        f"{change:+.2f} % (standard error {error:.2f})",
        f"{limit_percent} %",
        "not shown" if error > limit_percent else _YES_NO[change <= limit_percent],
    )


def _stall_lines(window: Mapping[str, Any]) -> tuple[OverheadLine, ...]:
    ours, bare, ratio = window["ours"], window["bare"], window["stall_ratio"]

    return (
        OverheadLine(
            "stall at a window's end (ms)",
            MS_PER_S * ours["stall"],
            MS_PER_S * bare["stall"],
            f"{ratio:.2f} times",
            f"{STALL_RATIO} times",
            _YES_NO[ratio <= STALL_RATIO],
        ),
        OverheadLine("... stop, which collects the events (ms)", MS_PER_S * ours["stop"], MS_PER_S * bare["stop"]),
        OverheadLine(
            f"... export of {ours['trace_mb']:.0f} MB, bare to .json.gz (ms)",
            MS_PER_S * ours["export"],
            MS_PER_S * bare["export"],
        ),
        OverheadLine("... release of the memory (ms)", MS_PER_S * ours["release"], None),
        OverheadLine("start of a window (ms)", MS_PER_S * ours["start"], None),
    )


def _nvml_lines(nvml: Mapping[str, Any] | None) -> tuple[OverheadLine, ...]:
    if nvml is None:
        return ()
    change, error = nvml["change_percent"], nvml["error_percent"]
    return (
        OverheadLine(
            f"step beside the NVML sampler at 5 Hz, {nvml['samples']} samples (ms)",
            nvml.get("median_ms"),
            nvml.get("bare_median_ms"),
            f"{change:+.2f} % (standard error {error:.2f})",
            "none measurable",
            _YES_NO[change <= _NOISE * error],
        ),
    )
