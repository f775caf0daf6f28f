"""The pipeline bubble against the number of micro-batches: theory, slope of step times, traces, hooks' own times.

Run: ``python -m benchmarks.bubble_sweep -o OUT`` on a machine with GPUs, one stage a GPU (4 H200: about five minutes),
or with ``--ranks 2 --tiny`` on two CPUs to see that it works; ``--framework deepspeed`` and ``--framework megatron
--megatron FOLDER`` train the same with those. Each setting is one training run under ``perfscope
profile``; its traces and records stay in OUT/runs. OUT/bubble_sweep.md holds the tables, .json the figures, .svg the
curve. A sweep that was interrupted goes on with the same command: settings that were measured are not trained again.

- theory: (p-1)/(m+p-1), equal stages.
- slope: the share of a step's passes that remains after m times the marginal time of a micro-batch; that time is the
  slope of a line through steady-state step times. Time outside the passes is subtracted first.
- trace: ``results.pipeline_bubble``; hooks: ``results.pipeline_steps``, over steady-state steps.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import shutil
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeVar

from tabulate import tabulate

from benchmarks.pipeline_runs import LARGE, OTHER_SCHEDULES, SHARED, TINY, VARIANTS, Framework, Setting
from benchmarks.processes import ROOT
from benchmarks.shared_gpus import WHOLE
from perfscope.charts.grammar import Chart, Dots, Line, Values
from perfscope.charts.palette import SERIES
from perfscope.charts.svg import draw_file
from perfscope.constants import MS_PER_S, US_PER_S
from perfscope.engine.run import Plan, analyze
from perfscope.hooks.timers.passes import Pass, PassTimer

ANALYZERS = frozenset({"steps", "pipeline_bubble", "pipeline_steps"})
_Measured = TypeVar("_Measured", float, dict[str, Any])
_LONGEST_S = 240
_CALLS = 2000


def run(command: Sequence[str]) -> str:
    """Run a command to its end and return its output; a failed command ends the benchmark with its errors."""
    path = os.pathsep.join([str(ROOT), *filter(None, [os.environ.get("PYTHONPATH")])])
    environment = {"OMP_NUM_THREADS": "1", **os.environ, "PYTHONPATH": path}
    ended = subprocess.run(command, capture_output=True, text=True, env=environment, timeout=_LONGEST_S, check=False)
    if ended.returncode:
        raise SystemExit(f"{' '.join(command)} ended with {ended.returncode}\n{ended.stdout}\n{ended.stderr[-4000:]}")
    return ended.stdout


def kept(path: Path, measure: Callable[[], _Measured]) -> _Measured:
    """What is measured, as JSON in a file: of an earlier sweep that was interrupted, or measured now."""
    if path.is_file():
        earlier: _Measured = json.loads(path.read_text())
        return earlier
    value = measure()
    unfinished = path.with_suffix(".tmp")
    unfinished.write_text(json.dumps(value))
    unfinished.replace(path)
    return value


def plain_ms(setting: Setting) -> float:
    """The median step of a run without perfscope, as the training script itself prints it."""
    return setting.median_step_ms(run(setting.command()))


def profiled(setting: Setting, folder: Path) -> dict[str, Any]:
    """The figures of one run under perfscope, trained now."""
    target = folder / setting.name
    shutil.rmtree(target, ignore_errors=True)  # of a training that was interrupted
    began = time.monotonic()
    run([sys.executable, "-m", "perfscope", "profile", "-o", str(target), "--nvml-hz", "0", "--", *setting.command()])
    analysis = analyze([target], Plan(only=ANALYZERS))
    results: dict[str, Any] = {name: result.data() for name, result in analysis.results.items()}
    for skip in analysis.skipped:
        sys.stderr.write(f"{target.name}: {skip.analyzer}: {skip.reason}\n")
    figures = _figures(setting, results)
    sys.stderr.write(f"{target.name}: {time.monotonic() - began:.0f} s, {json.dumps(figures)}\n")
    return figures


def _figures(setting: Setting, results: Mapping[str, Any]) -> dict[str, Any]:
    trace, hooks, steps = (results.get(name) or {} for name in ("pipeline_bubble", "pipeline_steps", "steps"))
    m, p = setting.microbatches, setting.stages
    step_ms = None if steps.get("median_s") is None else MS_PER_S * steps["median_s"]
    return {
        "schedule": setting.schedule,
        "microbatches": m,
        "step_ms": step_ms,
        "profiled_step_ms": None if steps.get("profiled_s") is None else MS_PER_S * steps["profiled_s"],
        "theory": (p - 1) / (m + p - 1)
        if setting.schedule in {"1f1b", "gpipe"}
        else trace.get("theory_fraction_of_total"),
        "recognised": trace.get("schedule"),
        "trace_section_ms": _ms(trace.get("section_us")),
        "trace_total": trace.get("fraction_of_total"),
        **{
            f"trace_{part}": trace.get(f"{part}_fraction_of_total")
            for part in ("schedule", "imbalance", "transfer", "host")
        },
        "hooks_section_ms": _ms(hooks.get("section_us")),
        "hooks_total": hooks.get("fraction_of_total"),
        "hooks_schedule": hooks.get("schedule_fraction_of_total"),
        "hooks_imbalance": hooks.get("imbalance_fraction_of_total"),
    }


def _ms(value: float | None) -> float | None:
    return None if value is None else value / MS_PER_S


def add_slope(rows: Sequence[dict[str, Any]]) -> float:
    """Add the share by the slope of step times to each row of one schedule; returns the slope in ms/micro-batch."""
    slope, _ = statistics.linear_regression([row["microbatches"] for row in rows], [row["step_ms"] for row in rows])
    for row in rows:
        outside = row["step_ms"] - row["hooks_section_ms"]
        row["outside_ms"] = outside
        row["slope"] = 1 - row["microbatches"] * slope / (row["step_ms"] - outside)
    return slope


def hook_cost_us() -> float:
    """What the hooks add to a pass on the host: two marks in the stream of a device that has nothing else to do."""
    import torch  # as in main

    if torch.cuda.is_available():
        torch.cuda.init()
    timer = PassTimer()
    identity = Pass("F", 0, 0, 4, 0, 4)
    costs = []
    for step in range(10):
        began = time.perf_counter()
        for _ in range(_CALLS):
            timer.end(timer.begin(identity, in_window=False))
        timer.end_step(step)
        if torch.cuda.is_available():
            torch.cuda.synchronize()
        timer.pop_finished()
        costs.append(US_PER_S * (time.perf_counter() - began) / _CALLS)
    return statistics.median(costs)


def chart(rows: Sequence[Mapping[str, Any]], p: int) -> str:
    """The curve as SVG: share of the total over micro-batches, one line for each method."""
    kinds = (("theory", "theory"), ("slope", "slope"), ("trace_schedule", "trace"), ("hooks_schedule", "hooks"))
    marks: list[Line | Dots] = []
    for (key, name), colour in zip(kinds, SERIES, strict=False):
        points = tuple((float(row["microbatches"]), 100 * row[key]) for row in rows if row.get(key) is not None)
        marks += [Line(name, colour, points), Dots("", colour, points)]
    return draw_file(
        [
            Chart(
                f"Bubble of the schedule, 1F1B, p = {p}",
                "The share of the time that is bubble over the number of micro-batches, by four methods.",
                Values("micro-batches", low=0, ticks=tuple(float(row["microbatches"]) for row in rows)),
                Values("% of the time", low=0),
                tuple(marks),
                height=320,
            )
        ]
    )


def document(figures: Mapping[str, Any]) -> str:
    """The tables as markdown."""
    heads = {
        "microbatches": "m",
        "step_ms": "Step (ms)",
        "theory": "Theory (%)",
        "slope": "Slope (%)",
        "trace_schedule": "Trace: schedule (%)",
        "hooks_schedule": "Hooks: schedule (%)",
        "trace_imbalance": "Trace: imbalance (%)",
        "trace_transfer": "Trace: transfer (%)",
        "trace_host": "Trace: host gaps (%)",
        "trace_total": "Trace: all (%)",
        "hooks_total": "Hooks: all (%)",
        "profiled": "Profiled step / steady-state",
    }
    schedule_heads = {
        "schedule": "Schedule",
        "recognised": "Recognised as",
        **{k: v for k, v in heads.items() if k != "slope"},
    }
    framework = Framework(figures.get("framework", Framework.TORCH))
    option = "" if framework is Framework.TORCH else f" --framework {framework}"
    width = figures.get("tensor", 1)
    option += "" if width == 1 else f" --tensor {width}"
    stages = f"{figures['ranks']} stages" + ("" if width == 1 else f" of {width} ranks each")
    parts = [
        "# The bubble over micro-batches",
        f"{figures['device']}, {stages}, torch {figures['torch']}; the command: "
        f"`python -m benchmarks.bubble_sweep{option}`.",
        "## 1F1B",
        _table(figures["sweep"], heads),
        "Shares are of p x T.",
    ]
    if figures["slope_ms"] is not None:
        parts[-1] = f"Each additional micro-batch adds {figures['slope_ms']:.3f} ms. {parts[-1]}"
    if figures["others"]:
        parts += ["## Other schedules", _table(figures["others"], schedule_heads)]
    return "\n\n".join([*parts, "## Overhead of the hooks", _cost(figures)]) + "\n"


def _cost(figures: Mapping[str, Any]) -> str:
    plain = ", ".join(f"{step_ms:.3f}" for step_ms in figures["plain_ms"])
    return (
        f"Timing a pass takes {figures['hook_us_a_pass']:.1f} us on the host, which is "
        f"{100 * figures['hook_share_of_a_step']:.3f} % of a step at m = {figures['cost_m']} if it is not hidden. "
        f"Median step without perfscope, before and after: {plain} ms; steady-state steps under perfscope: "
        f"{figures['under_perfscope_ms']:.3f} ms."
    )


def _table(rows: Sequence[Mapping[str, Any]], heads: Mapping[str, str]) -> str:
    cells = [[_cell(row, key) for key in heads] for row in rows]
    table: str = tabulate(cells, list(heads.values()), tablefmt="pipe", disable_numparse=True)
    return table


def _cell(row: Mapping[str, Any], key: str) -> str:
    if key == "profiled":
        profiled_ms, step_ms = row.get("profiled_step_ms"), row.get("step_ms")
        return f"{profiled_ms / step_ms:.2f}" if profiled_ms and step_ms else "n/a"
    value = row.get(key)
    if value is None:
        return "n/a"
    if isinstance(value, float):
        return f"{value:.2f}" if key.endswith("_ms") else f"{100 * value:.1f}"
    return str(value)


def _arguments(devices: int) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("-o", "--output", type=Path, required=True)
    parser.add_argument("--framework", type=Framework, choices=list(Framework), default=Framework.TORCH)
    parser.add_argument("--megatron", type=Path, help="the folder of Megatron's pretrain_gpt.py")
    parser.add_argument("--micro-batch", type=int, help="samples of a micro-batch")
    parser.add_argument("--ranks", type=int, default=devices or 2)
    parser.add_argument("--microbatches", type=int, nargs="+", default=[4, 8, 16, 32])
    parser.add_argument("--tiny", action="store_true", help="a model for CPUs")
    parser.add_argument("--tensor", type=int, default=1, help="ranks of a stage, by Megatron's tensor parallelism")
    parser.add_argument(
        "--share", default="", metavar="PERCENT,...", help="of a GPU, for each rank; below 100 they share the GPUs"
    )
    parser.add_argument("--turn", type=Path, help="a file whose lock a training has while it trains")
    parser.add_argument("--variants", nargs="*", default=[], choices=VARIANTS, help="1F1B with something else, too")
    parser.add_argument("--others", nargs="*", help="schedules beside 1F1B")
    parser.add_argument("--plain-once", action="store_true", help="no training without perfscope at the begin")
    return parser.parse_args()


def sweep(arguments: argparse.Namespace) -> dict[str, Any]:
    """Train every setting that no earlier sweep into the same folder has measured; returns the figures."""
    import torch  # as in main

    framework: Framework = arguments.framework
    shares = tuple(int(word) for word in arguments.share.split(",") if word)
    size = dict(TINY if arguments.tiny else SHARED if min(shares, default=WHOLE) < WHOLE else LARGE)
    size["micro-batch"] = arguments.micro_batch or size["micro-batch"]
    runs: Path = arguments.output / "runs"
    runs.mkdir(parents=True, exist_ok=True)
    cost_m = arguments.microbatches[min(1, len(arguments.microbatches) - 1)]

    place = (arguments.megatron, arguments.tensor, shares, arguments.turn)

    def setting(schedule: str, m: int, variant: str = "") -> Setting:
        return Setting(framework, schedule, m, arguments.ranks, size, *place, variant)

    def plain(name: str) -> float:
        return kept(runs / f"{name}.json", lambda: plain_ms(setting("1f1b", cost_m)))

    def under_perfscope(schedule: str, m: int, variant: str = "") -> dict[str, Any]:
        chosen = setting(schedule, m, variant)
        return kept(runs / f"{chosen.name}.json", lambda: profiled(chosen, runs))

    others = OTHER_SCHEDULES[framework] if arguments.others is None else arguments.others
    before = [] if arguments.plain_once else [plain("plain_before")]
    rows = [under_perfscope("1f1b", m) for m in sorted(arguments.microbatches)]
    slope = add_slope(rows) if len(rows) > 1 else None
    after = plain("plain_after")
    variants = [under_perfscope("1f1b", cost_m, variant) for variant in arguments.variants]
    other_schedules = [under_perfscope(schedule, cost_m) for schedule in others]
    under = next(row["step_ms"] for row in rows if row["microbatches"] == cost_m)
    cost = hook_cost_us()
    return {
        "device": torch.cuda.get_device_name(0) if torch.cuda.is_available() else f"{platform.machine()} CPU",
        "framework": framework,
        "torch": torch.__version__,
        "ranks": arguments.ranks // arguments.tensor,
        "tensor": arguments.tensor,
        "size": size,
        "sweep": rows,
        "slope_ms": slope,
        "others": other_schedules,
        "variants": variants,
        "shares": shares,
        "hook_us_a_pass": cost,
        "hook_share_of_a_step": 2 * cost_m * cost / (MS_PER_S * under),
        "cost_m": cost_m,
        "plain_ms": [*before, after],
        "under_perfscope_ms": under,
    }


def main() -> None:
    """Run the sweep and write its results."""
    import torch  # the tests build the report without it

    arguments = _arguments(torch.cuda.device_count())
    figures = sweep(arguments)
    (arguments.output / "bubble_sweep.json").write_text(json.dumps(figures, indent=2) + "\n")
    (arguments.output / "bubble_sweep.svg").write_text(chart(figures["sweep"], figures["ranks"]))
    (arguments.output / "bubble_sweep.md").write_text(document(figures))
    print(document(figures))


if __name__ == "__main__":
    main()
