"""Pairs of real runs compared, beside unprofiled steps: ``python -m benchmarks.compared_pairs``.

It prints the tables of ``reports/compare-h200.md`` from ``fixtures/compare``: baselines of the runs, the median steps
of the same trainings without perfscope, and the steps of many runs of the same code.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from itertools import combinations, pairwise
from pathlib import Path
from typing import NamedTuple

import numpy as np

from benchmarks.comparison import Judgement, find_most, judge
from perfscope.analyzers.comparison.change import Samples
from perfscope.analyzers.comparison.comparison import Comparison, compare_sides
from perfscope.analyzers.comparison.side import Figure
from perfscope.constants import NS_PER_S
from perfscope.engine.sides import read_side
from perfscope.renderers.markdown import render_sections
from perfscope.report import Column, Row, Section
from perfscope.tables.columns import Float64

FOLDER = Path("fixtures/compare")
_MOST_IN_ALL_PAIRS = 20
_SEVERAL = 5
_STEPS = 20
_DRAWS = 200
_TURNS = "one run's steps in turns"
#: So many steps of one run go to one side, as many to the other, and so on.
_TURN_LENGTHS = (1, 2, 3, 4, 5)


class Pair(NamedTuple):
    """Two runs: what was changed, their names, and the names of the same trainings without perfscope."""

    title: str
    a: str
    b: str
    unprofiled_a: str
    unprofiled_b: str
    work: float = 1.0


#: ``work`` is how much more a step of B does.
PAIRS = (
    Pair("nothing", "base_1", "base_2", "base", "base"),
    Pair("nothing, on another machine", "gpu_first", "gpu_second", "", ""),
    Pair("nothing, on another machine (FSDP2, waits for the host)", "fsdp2_first", "fsdp2_second", "", ""),
    Pair("float32 in place of bfloat16", "base_1", "fp32", "base", "fp32"),
    Pair("TF32 in place of float32 (DDP)", "no_tf32", "tf32", "", ""),
    Pair("batch 16 in place of 8, per token", "base_1", "batch_16", "base", "batch:16", 2.0),
    Pair("`torch.compile`", "base_1", "compile", "base", "compile"),
    Pair("DDP buckets of 1 MB in place of 25", "ddp_25", "ddp_1", "", ""),
    Pair("ZeRO stage 3 in place of 1", "zero1", "zero3", "", ""),
    Pair("TF32 in place of float32 (DDP, ten profiled steps)", "ddp_no_tf32", "ddp_tf32", "ddpfp32:off", "ddpfp32:on"),
    Pair("DDP buckets of 1 MB in place of 25 (2048 wide)", "ddp_wide_25", "ddp_wide_1", "ddp:25", "ddp:1"),
    Pair("ZeRO stage 1 in place of DDP", "ddp_wide_25", "zero1_wide", "ddp:25", "zero:1"),
    Pair("eager attention in place of a fused one", "clean", "eager_attention", "", ""),
    Pair("AdamW as a loop in place of foreach", "optimizer_foreach", "optimizer_loop", "", ""),
)


def compare_pairs(folder: Path) -> Iterator[tuple[Pair, Comparison]]:
    """The comparisons of the pairs whose runs are in a folder."""
    for pair in PAIRS:
        paths = [folder / f"{name}.json" for name in (pair.a, pair.b)]
        if all(path.exists() for path in paths):
            a, b = (read_side(str(path)) for path in paths)
            yield pair, compare_sides(a, b, anyway=True)


def unprofiled_change(pair: Pair, unprofiled: Mapping[str, Sequence[float]]) -> float | None:
    """The change of the median step without perfscope, for as much work; None where it was not measured."""
    a, b = (unprofiled.get(name) for name in (pair.unprofiled_a, pair.unprofiled_b))
    return float(np.median(b) / np.median(a)) / pair.work - 1 if a and b and a is not b else None


def document(folder: Path) -> str:
    """The tables of the report."""
    unprofiled = json.loads((folder / "unprofiled.json").read_text())
    rows: list[Row] = []
    for pair, comparison in compare_pairs(folder):
        change = comparison.changes[Figure.STEP_TIME]
        budget = comparison.budget
        assert change.interval is not None
        assert budget is not None
        alone = unprofiled_change(pair, unprofiled)
        rows.append(
            (
                pair.title,
                str(comparison.verdict),
                100 * change.change,
                f"{100 * change.interval[0]:+.2f} to {100 * change.interval[1]:+.2f}",
                None if alone is None else 100 * alone,
                100 * budget.traced_ns / NS_PER_S / change.a,
                100 * budget.unexplained_ns / NS_PER_S / max(change.a, change.b),
                ": ".join(part for part in budget.terms[0].term[:2] if part)[:60],
            )
        )
    columns = (
        Column("Changed"),
        Column("Verdict"),
        Column("Step time (%)", 2),
        Column("Interval (%)"),
        Column("Unprofiled (%)", 2),
        Column("Events show (%)", 2),
        Column("Unexplained (% of the longer step)", 2),
        Column("Largest term"),
    )
    pairs = Section("Pairs", columns, tuple(rows))
    return render_sections((pairs, _false_alarms(folder), _best_tests(folder)), 2)


def _best_tests(folder: Path) -> Section:
    columns = (
        Column("Runs"),
        Column("Processes"),
        Column("Standard deviation of a run's median (%)", 2),
        Column("Best test: 2 % found (%)", 0),
        Column("Runs a side for 95 %"),
    )
    kinds: dict[str, list[list[float]]] = json.loads((folder / "same_code.json").read_text())
    rows: list[Row] = []
    for kind, series in kinds.items():
        spread, most, needed = find_most(series)
        rows.append((kind, len(series), 100 * spread, 100 * most, needed))
    return Section("What one run of each side can tell at best", columns, tuple(rows))


def _false_alarms(folder: Path) -> Section:
    columns = (
        Column("Runs"),
        Column("A side"),
        Column("Pairs"),
        Column("False alarms"),
        Column("2 % found"),
        Column("Steps alone: alarms"),
        Column("Steps alone: 2 % found"),
        Column("Half of the interval (%)", 2),
    )
    rows = tuple(
        (
            kind,
            side,
            judged.pairs,
            judged.false_alarms,
            judged.found,
            judged.steps_false_alarms,
            judged.steps_found,
            100 * judged.half_width,
        )
        for kind, side, judged in judgements(folder)
    )
    return Section("Runs of the same code", columns, rows)


def judgements(folder: Path) -> Iterator[tuple[str, str, Judgement]]:
    """What became of pairs of runs of the same code, kind by kind."""
    kinds: dict[str, list[list[float]]] = json.loads((folder / "same_code.json").read_text())
    for kind, series in kinds.items():
        runs = [np.asarray(run, np.float64) for run in series]
        is_few = len(runs) <= _MOST_IN_ALL_PAIRS
        yield kind, _TURNS, judge(list(_halves_in_turns(runs)), between_runs=0)
        pairs = combinations(runs, 2) if is_few else pairwise(runs)
        yield kind, "one run", judge([(Samples((a,)), Samples((b,))) for a, b in pairs])
        yield kind, f"{_SEVERAL} runs of 20 steps", judge(list(_several(runs) if is_few else _in_turns(runs)))


def _halves_in_turns(runs: Sequence[Float64]) -> Iterator[tuple[Samples, Samples]]:
    """The steps of each run, split in two by turns of some steps: both sides are of one process."""
    for run in runs:
        for length in _TURN_LENGTHS:
            is_second = np.arange(len(run)) // length % 2 == 1
            yield Samples((run[~is_second],)), Samples((run[is_second],))


def _several(runs: Sequence[Float64]) -> Iterator[tuple[Samples, Samples]]:
    """Two times five of the runs, the first 20 steps of each, drawn again and again."""
    generator = np.random.default_rng(0)
    for _ in range(_DRAWS):
        drawn = [runs[row][:_STEPS] for row in generator.permutation(len(runs))[: 2 * _SEVERAL]]
        yield Samples(tuple(drawn[:_SEVERAL])), Samples(tuple(drawn[_SEVERAL:]))


def _in_turns(runs: Sequence[Float64]) -> Iterator[tuple[Samples, Samples]]:
    """Of ten consecutive runs those with even numbers against those with odd ones."""
    for first in range(len(runs) - 2 * _SEVERAL + 1):
        ten = [run[:_STEPS] for run in runs[first : first + 2 * _SEVERAL]]
        yield Samples(tuple(ten[::2])), Samples(tuple(ten[1::2]))


def main() -> None:
    print(document(FOLDER))


if __name__ == "__main__":
    main()
