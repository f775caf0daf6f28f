"""How near the shares of profiled steps come to those of steps that nobody profiles.

``python -m benchmarks.light_window FOLDER`` prints the table of reports/h200-light-window.md. The folder holds, for
each training NAME, the run ``NAME`` of ``perfscope profile`` and ``NAME.json``,
which has times of steps that nobody profiles, by CUDA events.
"""

from __future__ import annotations

import json
import statistics
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from perfscope.constants import NS_PER_MS
from perfscope.engine.analysis_report import to_report
from perfscope.engine.run import analyze
from perfscope.report import percent
from perfscope.wire import LIGHT_FOLDER, TRACES_FOLDER

_HEADINGS = (
    "Training",
    "Step without perfscope (ms)",
    "Steady-state step (ms)",
    "Busy by CUDA events (%)",
    "Window with operators (%)",
    "Light window (%)",
    "Error (points)",
)

#: A device that takes longer than this, relative to isolated steps, waits for the host.
_WITHOUT_WAITS = 1.15


@dataclass(frozen=True)
class Shares:
    """For how much of a step the device computed and copied, as shares of the step.

    Attributes:
        step_ns: A step without perfscope.
        steady_ns: A steady-state step of the profiled run.
        events: The kernels of an isolated step, by CUDA events, over a step without perfscope.
        operators, light: What the marked steps of either window have.
    """

    training: str
    step_ns: float
    steady_ns: float
    events: float
    operators: float
    light: float

    @property
    def error(self) -> float:
        """By how many points the light window is above the events."""
        return percent(self.light - self.events) or 0.0


def main() -> None:
    """Print the table."""
    print(document(Path(sys.argv[1])), end="")


def document(folder: Path) -> str:
    """The table of the report."""
    lines = [f"| {' | '.join(_HEADINGS)} |", "|:---|" + "---:|" * (len(_HEADINGS) - 1)]
    for row in compare(folder):
        times = (f"{ns / NS_PER_MS:.2f}" for ns in (row.step_ns, row.steady_ns))
        shares = (f"{percent(share):.1f}" for share in (row.events, row.operators, row.light))
        lines.append(f"| {' | '.join((row.training, *times, *shares, f'{row.error:+.1f}'))} |")
    return "\n".join(lines) + "\n"


def compare(folder: Path) -> list[Shares]:
    """The shares of every training, in the order of their names."""
    return [_compare(folder / path.stem, json.loads(path.read_text())) for path in sorted(folder.glob("*.json"))]


def _compare(run: Path, truth: Mapping[str, Any]) -> Shares:
    step_ns = statistics.median(truth["host_ns"])
    traces = run / TRACES_FOLDER
    windows = [_results(sorted(place.glob("*.gz"))) for place in (traces, traces / LIGHT_FOLDER)]
    results = _results([run])
    operators, light = (_busy(window["breakdown"]["ranks"][0]["marked"]) for window in windows)
    return Shares(
        training=run.name.replace("_", " "),
        step_ns=step_ns,
        steady_ns=results["steps"]["ranks"][0]["median_s"] * 1e9,
        events=time_kernels_ns(truth) / step_ns,
        operators=operators,
        light=light,
    )


def time_kernels_ns(truth: Mapping[str, Any]) -> float:
    """How long the kernels of an undisturbed step run, by CUDA events.

    Events around an undisturbed step also time the device's waits for the host. Those around an isolated one do not,
    but a device that rests in between has a higher clock: they count only where the device waits. Either time the gaps
    between kernels, too, whose share is that of an isolated step. The waits for reductions are no work.
    """
    isolated_ns = _median_without_waits(truth["isolated_ns"], truth.get("isolated_wait_ns"))
    # Without events around undisturbed steps the host's time is the most that the device can have worked.
    device_ns = _median_without_waits(truth.get("device_ns") or truth["host_ns"], truth.get("device_wait_ns"))
    busy_ns = statistics.mean(truth["isolated_busy_ns"])
    # A window that held the kernel that spins was not kept.
    window_ns = statistics.mean(truth["isolated_window_ns"]) if "isolated_window_ns" in truth else isolated_ns
    if device_ns > _WITHOUT_WAITS * isolated_ns:
        return float(isolated_ns * busy_ns / window_ns)
    # The steps between events may be slower than the others by the device's clock. Where the device never waits for the
    # host, one step's events follow the other's at once.
    slower = 1.0
    if "device_wait_ns" in truth:
        distance_ns = truth.get("distance_ns") or truth["device_ns"]
        slower = statistics.median(distance_ns) / statistics.median(truth["host_ns"])
    return float(device_ns / slower * busy_ns / window_ns)


def _median_without_waits(times_ns: Sequence[int], waits_ns: Sequence[int] | None) -> float:
    pairs = zip(times_ns, waits_ns or [0] * len(times_ns), strict=True)
    return statistics.median(time_ns - wait_ns for time_ns, wait_ns in pairs)


def _results(paths: list[Path]) -> dict[str, Any]:
    results: dict[str, Any] = json.loads(json.dumps(to_report(analyze(paths)).data["results"]))
    return results


def _busy(parts: Mapping[str, Any]) -> float:
    return float((parts["compute_us"] + parts["exposed_copy_us"]) / parts["window_us"])


if __name__ == "__main__":
    main()
