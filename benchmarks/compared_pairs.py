"""Pairs of real runs compared, beside unprofiled steps: ``python -m benchmarks.compared_pairs``.

It prints the tables of ``reports/compare-h200.md`` from ``fixtures/compare``: baselines of the runs, the median steps
of the same trainings without perfscope, and the steps of many runs of the same code.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from itertools import pairwise
from pathlib import Path
from typing import NamedTuple

import numpy as np

from benchmarks.comparison import Judgement, halves, judge
from perfscope.analyzers.comparison.change import Samples
from perfscope.analyzers.comparison.comparison import Comparison, compare_sides
from perfscope.analyzers.comparison.side import Figure
from perfscope.engine.sides import read_side
from perfscope.renderers.markdown import render_sections
from perfscope.report import Column, Row, Section

FOLDER = Path("fixtures/compare")


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
    Pair("nothing (A/A), on two GPUs", "base_1", "base_2", "base", "base"),
    Pair("nothing (A/A), on one GPU", "base_1", "base_3", "base", "base"),
    Pair("float32 in place of bfloat16", "base_1", "fp32", "base", "fp32"),
    Pair("batch 16 in place of 8, per token", "base_1", "batch_16", "base", "batch:16", 2.0),
    Pair("`torch.compile`", "base_1", "compile", "base", "compile"),
    Pair("DDP buckets of 1 MB in place of 25", "ddp_25", "ddp_1", "ddp:25", "ddp:1"),
    Pair("ZeRO stage 2 in place of 1", "zero_1", "zero_2", "zero:1", "zero:2"),
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
                100 * budget.unexplained_ns / budget.step_ns,
                ": ".join(part for part in budget.terms[0].term[:2] if part)[:60],
            )
        )
    columns = (
        Column("Changed"),
        Column("Verdict"),
        Column("Step time (%)", 2),
        Column("Interval (%)"),
        Column("Unprofiled (%)", 2),
        Column("Unexplained (% of a step)", 2),
        Column("Largest term"),
    )
    pairs = Section("Pairs", columns, tuple(rows))
    return render_sections((pairs, _false_alarms(folder)), 2)


def _false_alarms(folder: Path) -> Section:
    columns = (
        Column("Runs of the same code"),
        Column("Pairs"),
        Column("False alarms"),
        Column("Of 2 % added, found"),
        Column("Half of the interval (%)", 2),
    )
    rows = tuple(
        (title, judged.pairs, judged.false_alarms, judged.found, 100 * judged.half_width)
        for title, judged in judgements(folder)
    )
    return Section("Runs of the same code", columns, rows)


def judgements(folder: Path) -> Iterator[tuple[str, Judgement]]:
    """What became of pairs of runs of the same code, kind by kind."""
    kinds: dict[str, list[list[list[float]]]] = json.loads((folder / "same_code.json").read_text())
    for title, workers in kinds.items():
        runs = [[Samples((np.asarray(run),)) for run in worker] for worker in workers]
        following = [pair for worker in runs for pair in pairwise(worker)]
        second = [(a, b) for worker in runs for a, b in zip(worker, worker[2:], strict=False)]
        yield f"{title}: one run against the next but one at most", judge((following + second)[:200])
        yield f"{title}: even against odd steps of a run", judge([halves(run) for worker in workers for run in worker])
        yield f"{title}: three runs against three, in turns", judge(list(_threes(runs)))


def _threes(workers: Sequence[Sequence[Samples]]) -> Iterator[tuple[Samples, Samples]]:
    """Of six consecutive runs of a worker those with even numbers against those with odd ones."""
    for worker in workers:
        for first in range(len(worker) - 5):
            six = [run.runs[0] for run in worker[first : first + 6]]
            yield Samples(tuple(six[::2])), Samples(tuple(six[1::2]))


def main() -> None:
    print(document(FOLDER))


if __name__ == "__main__":
    main()
