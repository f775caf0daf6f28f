"""What ``benchmarks/overhead.py`` recorded, as lines that say what perfscope cost and what it may cost."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from perfscope.errors import SourceError
from perfscope.files import read_text

#: What perfscope may cost.
OUTSIDE_PERCENT, WINDOW_PERCENT, STALL_RATIO, MEMORY_MB, GROWTH_MB = 0.3, 2.0, 0.5, 20.0, 5.0
_YES_OR_NO = {True: "yes", False: "no"}
_NOISE = 3.0  # standard errors, below which a change is none


@dataclass(frozen=True, slots=True)
class CostLine:
    """One thing that was measured with perfscope and without.

    Attributes:
        what: What, with its unit.
        ours, bare: With perfscope and without; absent where there is no such thing.
        difference: By how much they differ, in words; empty for a part of the line above.
        limit: How much is allowed, in words; empty where nothing is promised.
        kept: ``yes``, ``no``, or ``not shown`` where the noise is larger than the limit; empty without a limit.
    """

    what: str
    ours: float | None
    bare: float | None
    difference: str = ""
    limit: str = ""
    kept: str = ""


def read_overhead(path: Path) -> tuple[str, tuple[CostLine, ...]]:
    """Read where the benchmark ran, and its lines.

    Raises:
        SourceError: The file was not written by the benchmark.
    """
    try:
        found = json.loads(read_text(path))
        return ", ".join(str(fact) for fact in found["machine"].values()), lines(found)
    except (ValueError, KeyError, TypeError, RecursionError):
        raise SourceError(path, "was not written by `python -m benchmarks.overhead --json`") from None


def lines(found: Mapping[str, Any]) -> tuple[CostLine, ...]:
    """The lines of what the benchmark measured."""
    memory, growth = found["memory"], found["growth"]
    more_mb, grown_mb = memory["more_mb"], growth["mb"]
    return (
        _steps("step outside windows (ms)", found["outside"], OUTSIDE_PERCENT),
        _steps("step in a window (ms)", found["window"], WINDOW_PERCENT),
        *_stall(found["window"]),
        CostLine(
            "undisturbed step behind all windows, and before them (ms)",
            found["after"]["median_ms"],
            found["outside"]["bare_median_ms"],
            f"{found['after']['change_percent']:+.2f} %",
        ),
        *_nvml(found.get("nvml")),
        CostLine(
            "memory of the process outside windows (MB)",
            memory["mb"],
            memory["bare_mb"],
            f"{more_mb:+.1f} MB",
            f"{MEMORY_MB:.0f} MB",
            _YES_OR_NO[more_mb <= MEMORY_MB],
        ),
        CostLine(
            f"memory gained over the last nine tenths of {growth['windows']} windows (MB)",
            grown_mb,
            growth["bare_mb"],
            "",
            f"{GROWTH_MB:.0f} MB",
            _YES_OR_NO[grown_mb <= GROWTH_MB],
        ),
    )


def _steps(what: str, compared: Mapping[str, Any], limit_percent: float) -> CostLine:
    change, error = compared["change_percent"], compared["error_percent"]
    return CostLine(
        what,
        compared["median_ms"],
        compared["bare_median_ms"],
        f"{change:+.2f} % (standard error {error:.2f})",
        f"{limit_percent} %",
        "not shown" if error > limit_percent else _YES_OR_NO[change <= limit_percent],
    )


def _stall(window: Mapping[str, Any]) -> tuple[CostLine, ...]:
    ours, bare, ratio = window["ours"], window["bare"], window["stall_ratio"]
    times = f"{ratio:.2f} times"
    return (
        CostLine(
            "stall at a window's end (ms)",
            1e3 * ours["stall"],
            1e3 * bare["stall"],
            times,
            f"{STALL_RATIO} times",
            _YES_OR_NO[ratio <= STALL_RATIO],
        ),
        CostLine("... stop, which collects the events (ms)", 1e3 * ours["stop"], 1e3 * bare["stop"]),
        CostLine(
            f"... export of {ours['trace_mb']:.0f} MB, bare to .json.gz (ms)",
            1e3 * ours["export"],
            1e3 * bare["export"],
        ),
        CostLine("... giving the memory back (ms)", 1e3 * ours["release"], None),
        CostLine("start of a window (ms)", 1e3 * ours["start"], None),
    )


def _nvml(nvml: Mapping[str, Any] | None) -> tuple[CostLine, ...]:
    if nvml is None:
        return ()
    change, error = nvml["change_percent"], nvml["error_percent"]
    return (
        CostLine(
            f"step beside the NVML sampler at 5 Hz, {nvml['samples']} samples (ms)",
            nvml.get("median_ms"),
            nvml.get("bare_median_ms"),
            f"{change:+.2f} % (standard error {error:.2f})",
            "none measurable",
            _YES_OR_NO[change <= _NOISE * error],
        ),
    )
