"""What a series of many GPUs has measured, as the tables of ``h100-four-gpus.md`` and ``h200-quarters.md`` in reports/.

``python -m benchmarks.series_figures --collect OUT FIGURES.json`` keeps the figures of what ``python -m
benchmarks.many_gpus -o OUT`` has done so far, beside those that FIGURES.json has; ``python -m benchmarks.series_figures
FIGURES.json`` prints them.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterable, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from typing import Any

from tabulate import tabulate

from benchmarks.bubble_sweep import add_slope
from benchmarks.series_runs import bench_sections, collect_bench, collect_pairs, collect_runs, run_sections
from benchmarks.sweep_pairs import document as document_pairs
from benchmarks.sweep_pairs import judge

_TITLES = {
    "torch_pp": "torch.distributed.pipelining, four stages",
    "torch_pp_slow_device": "The same as clients of the multi-process service; a slow device is half a GPU",
    "deepspeed_pp": "DeepSpeed's PipelineEngine, four stages",
    "megatron_pp": "Megatron-core, four stages",
    "megatron_tp2_pp": "Megatron-core, two stages of two ranks",
}
_SHARES = {
    "theory": "Theory (%)",
    "slope": "Slope (%)",
    "trace_schedule": "Trace: schedule (%)",
    "hooks_schedule": "Hooks: schedule (%)",
    "trace_rest": "Trace: transfers and host gaps (%)",
    "trace_total": "Trace: all (%)",
    "hooks_total": "Hooks: all (%)",
}
_COST_M = 8


def collect(out: Path, figures: dict[str, Any]) -> dict[str, Any]:
    """The figures of the runs of a series, over those of earlier ones."""
    sweeps: dict[str, Any] = figures.setdefault("sweeps", {})
    for name in _TITLES:
        runs = out / name / "runs"
        rows = sweeps.setdefault(name, {})
        for path in sorted(runs.glob("*_m*.json")):
            row = json.loads(path.read_text())
            rows[path.stem] = {key: _rounded(value) for key, value in row.items() if key not in {"slope", "outside_ms"}}
        for path in sorted(runs.glob("plain_*.json")):
            rows["plain"] = json.loads(path.read_text())
    with ProcessPoolExecutor() as pool:  # traces of a sweep are read for a minute
        for judged in pool.map(_judge, [out / name / "runs" for name in _TITLES]):
            _add_pairs(figures, judged)
    for path in sorted(out.glob("pairs_*.json")):  # judged where the traces were
        _add_pairs(figures, json.loads(path.read_text()))
    others = collect_runs(out)
    figures.setdefault("runs", {}).update(_rounded(others))
    _add_pairs(figures, collect_pairs(out, others))
    figures["bench"] = [*figures.get("bench", ()), *_next_rounds(figures.get("bench", ()), collect_bench(out))]
    stopped = {(result["framework"], result["fault"]): result for result in figures.setdefault("stopped", [])}
    for path in sorted(out.glob("postmortem_*/results.json")):
        results = json.loads(path.read_text())["results"]
        stopped |= {(result["framework"], result["fault"]): result for result in results}
    figures["stopped"] = list(stopped.values())
    return figures


def _judge(runs: Path) -> list[dict[str, Any]]:
    return list(judge(runs))


def _add_pairs(figures: dict[str, Any], judged: Iterable[Mapping[str, Any]]) -> None:
    pairs = {(pair["traced"], pair["scenario"], pair["made"]): pair for pair in figures.setdefault("pairs", [])}
    pairs |= {(pair["traced"], pair["scenario"], pair["made"]): _rounded(pair) for pair in judged}
    figures["pairs"] = list(pairs.values())


def _next_rounds(earlier: Sequence[Mapping[str, Any]], rows: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """The rounds of another call are others than those before: it may have had another GPU."""
    first = 1 + max((row["repetition"] for row in earlier), default=-1)
    return [{**row, "repetition": first + row["repetition"]} for row in rows]


def _rounded(value: Any) -> Any:  # noqa: ANN401 - a figure of JSON
    if isinstance(value, Mapping):
        return {key: _rounded(member) for key, member in value.items()}
    if isinstance(value, list):
        return [_rounded(member) for member in value]
    return round(value, 5) if isinstance(value, float) else value


def document(figures: Mapping[str, Any]) -> str:
    """The tables as markdown."""
    parts = []
    for name, title in _TITLES.items():
        if rows := figures["sweeps"].get(name):
            parts += [f"## {title}", *_sweep(rows)]
    if figures.get("runs"):
        parts += ["## Trainings that are no pipelines", *run_sections(figures["runs"])]
    if figures.get("bench"):
        parts += ["## Strategies by number of ranks", *bench_sections(figures["bench"])]
    parts += ["## Predicted and made", document_pairs(figures["pairs"])]
    parts += ["## Trainings that were stopped", _stopped(figures["stopped"])]
    return "\n\n".join(parts) + "\n"


def _sweep(rows: Mapping[str, Any]) -> list[str]:
    settings = {name: dict(row) for name, row in rows.items() if name != "plain"}
    straight = sorted((row for name, row in settings.items() if _is_straight(name, row)), key=_microbatches)
    slope_ms = add_slope(straight) if len(straight) > 1 else None
    others = [
        {**row, "schedule": name.partition("_")[2]} for name, row in settings.items() if not _is_straight(name, row)
    ]
    parts = [_table([*straight, *others])]
    plain_ms, under = rows.get("plain"), next((row for row in straight if _microbatches(row) == _COST_M), None)
    if slope_ms is not None:
        parts.append(f"Each additional micro-batch adds {slope_ms:.1f} ms.")
    if plain_ms and under:
        change = 100 * (under["step_ms"] / plain_ms - 1)
        parts.append(f"Without perfscope a step of {_COST_M} micro-batches took {plain_ms:.1f} ms: {change:+.1f} %.")
    return parts


def _is_straight(name: str, row: Mapping[str, Any]) -> bool:
    return name.endswith(f"_1f1b_m{row['microbatches']}")


def _microbatches(row: Mapping[str, Any]) -> int:
    count: int = row["microbatches"]
    return count


def _table(rows: Sequence[Mapping[str, Any]]) -> str:
    headings = ("Training", "m", "Step (ms)", "Profiled step (ms)", *_SHARES.values())
    rows = [{**row, "trace_rest": _add(row.get("trace_transfer"), row.get("trace_host"))} for row in rows]
    cells = [
        (
            *(row["schedule"], row["microbatches"], _cell(row.get("step_ms")), _cell(row.get("profiled_step_ms"))),
            *(_cell(row.get(key), 100) for key in _SHARES),
        )
        for row in rows
    ]
    table: str = tabulate(cells, headings, tablefmt="pipe", disable_numparse=True)
    return table


def _add(first: float | None, second: float | None) -> float | None:
    return None if first is None or second is None else first + second


def _cell(value: float | None, scale: int = 1) -> str:
    return "n/a" if value is None else f"{scale * value:.1f}"


def _stopped(results: Sequence[Mapping[str, Any]]) -> str:
    headings = ("Training", "Fault", "Rank at fault", "Reason that is named", "Ranks that are named", "Right")
    cells = [
        (
            *(result["framework"], result["fault"], result["rank"], result["reason"]),
            ", ".join(map(str, result["blamed"])) or "n/a",
            "yes" if result["is_right"] else "no",
        )
        for result in results
    ]
    table: str = tabulate(cells, headings, tablefmt="pipe", disable_numparse=True)
    return table


def main() -> None:
    """Collect figures, or print their tables."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("figures", type=Path)
    parser.add_argument("--collect", type=Path, metavar="OUT", help="the folder of a series")
    arguments = parser.parse_args()
    figures = json.loads(arguments.figures.read_text()) if arguments.figures.is_file() else {}
    if arguments.collect:
        arguments.figures.write_text(json.dumps(collect(arguments.collect, figures), indent=1) + "\n")
    else:
        print(document(figures))


if __name__ == "__main__":
    main()
