"""Trainings of ``many_gpus`` that are no pipelines: their figures, and the tables of them.

ZeRO 3 under perfscope and without it, trainings that save, trainings without communication, and the benchmark of
strategies by number of ranks.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from tabulate import tabulate

from benchmarks.pipeline_runs import SLOW_HOST, SLOW_RANK
from benchmarks.sweep_pairs import predict
from perfscope.bench.measurement import Measurement, read_measurements
from perfscope.bench.rows import sum_up
from perfscope.bench.scaling import scaling_sections
from perfscope.bench.settings import read_variant
from perfscope.constants import GB, MS_PER_S, NS_PER_MS
from perfscope.engine.run import Plan, analyze
from perfscope.report import Section

_TITLES = {
    "deepspeed_zero3": "DeepSpeed ZeRO 3",
    "deepspeed_saves": "DeepSpeed ZeRO 3 that saves",
    "megatron_saves": "Megatron-core that saves",
    "torch_ddp": "DistributedDataParallel",
    "torch_fsdp2": "FSDP 2",
    "torch_none": "no communication",
    "torch_ddp_slow_device": "DistributedDataParallel, a slow device",
    "torch_ddp_slow_host": "DistributedDataParallel, a slow host",
}
_ANALYZERS = frozenset({"steps", "breakdown", "energy", "saves"})
_PARTS = ("compute", "exposed_communication", "exposed_copy", "idle")
#: Of each training with traces the change, and the training in which it is made.
_PAIRS = (
    ("torch_ddp", "communication-free", "torch_none"),
    ("torch_fsdp2", "communication-free", "torch_none"),
    ("torch_ddp_slow_device", f"median-device={SLOW_RANK}", "torch_ddp"),
    ("torch_ddp_slow_device", "no-stragglers", "torch_ddp"),
    ("torch_ddp_slow_host", f"median-host={SLOW_HOST[0]}", "torch_ddp"),
    ("torch_ddp_slow_host", "no-stragglers", "torch_ddp"),
)
_MEDIAN = re.compile(r"median step ([\d.]+) ms")
_KEPT = ("repetition", "step_ns", "samples", "nodes")
_LARGEST_SIZES = 3


def collect_runs(out: Path) -> dict[str, Any]:
    """The figures of each training by its name."""
    return {name: figures for name in _TITLES if (figures := _read_run(out, name))}


def _read_run(out: Path, name: str) -> dict[str, Any] | None:
    run = out / name / "run"
    if not (run / "ranks").is_dir():
        return None
    results: dict[str, Any] = {
        analyzer: result.data() for analyzer, result in analyze([run], Plan(only=_ANALYZERS)).results.items()
    }
    steps = results.get("steps")
    if steps is None or steps["median_s"] is None:
        return None
    whole = (results.get("breakdown") or {}).get("all") or {}
    plain = out / f"{name}_plain.log"
    without = _MEDIAN.findall(plain.read_text()) if plain.is_file() else []
    return {
        "step_ms": MS_PER_S * steps["median_s"],
        "profiled_step_ms": steps["profiled_s"] and MS_PER_S * steps["profiled_s"],
        "plain_ms": float(without[-1]) if without else None,
        "shares": {part: whole[f"{part}_us"] / whole["window_us"] for part in _PARTS} if whole else {},
        "step_j": (results.get("energy") or {}).get("step_j"),
        "saves": [
            {key: save[key] for key in ("step", "blocked_s", "bytes", "ranks")}
            for save in (results.get("saves") or {}).get("saves", ())
        ],
    }


def collect_pairs(out: Path, runs: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
    """What is predicted from the traces of a training, and what the one took in which the change is made."""
    for name, scenario, made in _PAIRS:
        if name not in runs or made not in runs or not any((out / name / "run" / "traces").glob("*.json*")):
            continue
        judged = {"traced": name, "scenario": scenario, "made": made, "took_ms": runs[made]["step_ms"]}
        found = predict(out / name / "run", scenario, runs[name]["step_ms"])
        if found.refused:
            yield judged | {"reason": found.refused[0][1]}
            continue
        (outlook,) = found.outlooks
        predicted_ms, took_ms = outlook.step_ns / NS_PER_MS, runs[made]["step_ms"]
        yield judged | {
            "predicted_ms": predicted_ms,
            "uncertain_ms": outlook.uncertain_ns / NS_PER_MS,
            "error": predicted_ms / took_ms - 1,
            "replay_error": found.error,
        }


def collect_bench(out: Path) -> list[dict[str, Any]]:
    """What the trainings of ``perfscope bench`` took, in the order of their names."""
    rows = []
    for training in read_measurements(out / "scaling_law" / "bench" / "rows"):
        if training.reason is None:
            whole = training.data()
            rows.append({"variant": whole["variant"], **{key: whole[key] for key in _KEPT}})
    return rows


def run_sections(runs: Mapping[str, Any]) -> Iterator[str]:
    """The trainings, and their saves, as markdown."""
    if not runs:
        return
    headings: tuple[str, ...] = ("Training", "Step (ms)", "Without perfscope (ms)", "Profiled step (ms)", "Compute (%)")
    headings += ("Exposed communication (%)", "Idle (%)", "Energy of a step, all GPUs (J)")
    cells: list[tuple[str, ...]] = []
    for name, run in runs.items():
        shares = run["shares"]
        parts = [_cell(shares.get(part), 100) for part in ("compute", "exposed_communication", "idle")]
        times = [_cell(run[key]) for key in ("step_ms", "plain_ms", "profiled_step_ms")]
        cells.append((_TITLES[name], *times, *parts, _cell(run["step_j"])))
    yield _table(headings, cells)
    saved = [(name, save) for name, run in runs.items() for save in run["saves"]]
    if saved:
        headings = ("Training", "Behind step", "Ranks", "Training stood still (s)", "GB", "Of a step")
        yield _table(
            headings,
            [
                (
                    *(_TITLES[name], str(save["step"]), str(save["ranks"]), _cell(save["blocked_s"], 1, 2)),
                    *(_cell(save["bytes"], 1 / GB, 2), _cell(save["blocked_s"], MS_PER_S / runs[name]["step_ms"])),
                )
                for name, save in saved
            ],
        )


def bench_sections(rows: Sequence[Mapping[str, Any]]) -> Iterator[str]:
    """Throughput by number of ranks, and the largest number predicted from the smaller ones, as markdown."""
    trainings = [
        Measurement(
            read_variant(row["variant"]),
            row["repetition"],
            step_ns=tuple(row["step_ns"]),
            samples=row["samples"],
            nodes=row["nodes"],
        )
        for row in rows
    ]
    summed = sum_up(trainings)
    sizes = sorted({row.variant.nproc for row in summed})
    by_place = {(row.variant.strategy, row.variant.nproc): row for row in summed}
    cells = [
        (strategy, *(_speed(by_place.get((strategy, size))) for size in sizes))
        for strategy in dict.fromkeys(row.variant.strategy for row in summed)
    ]
    yield _table(("Samples/s by ranks", *map(str, sizes)), cells)
    if len(sizes) >= _LARGEST_SIZES:
        *_, last = scaling_sections(summed, is_weak=False)
        yield from _section(last)


def _section(section: Section) -> Iterator[str]:
    yield f"### {section.title}"
    cells = [["n/a" if cell is None else _number(cell) for cell in row] for row in section.rows]
    yield _table([column.heading for column in section.columns], cells)
    yield "\n".join(f"- {note}" for note in section.notes)


def _number(cell: object) -> str:
    return f"{cell:.1f}" if isinstance(cell, float) else str(cell)


def _speed(row: Any) -> str:  # noqa: ANN401 - a row of the benchmark, or None
    if row is None or row.samples_per_s is None:
        return "n/a"
    low, high = row.interval if len(row.trainings) > 1 and row.interval else (None, None)
    return f"{row.samples_per_s:.1f}" + (f" ({low:.1f} to {high:.1f})" if low and high else "")


def _cell(value: float | None, scale: float = 1, digits: int = 1) -> str:
    return "n/a" if value is None else f"{scale * value:.{digits}f}"


def _table(headings: Sequence[str], cells: Sequence[Sequence[str]]) -> str:
    table: str = tabulate(cells, headings, tablefmt="pipe", disable_numparse=True)
    return table
