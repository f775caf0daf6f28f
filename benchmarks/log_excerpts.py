"""How many figures of published logs are read right, against what a hand calculation makes of the same lines.

Run: ``python -m benchmarks.log_excerpts``. ``fixtures/published_logs/excerpts.toml`` says where each excerpt is from,
and what it says. A figure is right if it equals the one worked out by hand to six digits, *n/a* if perfscope says that
there is none and the file says why, else wrong. The lines of ``fixtures/foreign_logs`` are of programs that are not
claimed. ``reports/log-formats.md`` holds the tables.
"""

from __future__ import annotations

import tomllib
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import cast

from tabulate import tabulate

from perfscope.analyzers.logs.summary import LogSummary, summarize_log
from perfscope.result import to_object
from perfscope.sources.joblog import read_log

ROOT = Path(__file__).parents[1]
EXCERPTS = ROOT / "fixtures" / "published_logs"
FOREIGN = ROOT / "fixtures" / "foreign_logs"
TOLERANCE = 1e-6


class Verdict(StrEnum):
    """What became of an excerpt's step time."""

    RIGHT = "right"
    ABSENT = "n/a"
    WRONG = "wrong"


@dataclass(frozen=True, slots=True)
class Excerpt:
    """An excerpt and its truth.

    Attributes:
        path: Its lines.
        source: Repository, and thread or file.
        how: How the truth follows from the lines.
        absent: Why there is no step time.
        expect: What perfscope must answer, by name.
    """

    path: Path
    source: str
    how: str
    absent: str
    expect: dict[str, str | int | float]

    def read(self) -> LogSummary:
        """Read the lines."""
        return summarize_log(read_log(self.path))


def load(folder: Path) -> list[Excerpt]:
    """Every excerpt of a folder, in the order of its list."""
    [index] = folder.glob("*.toml")
    entries = tomllib.loads(index.read_text())["excerpt"]
    return [
        Excerpt(
            folder / f"{entry['name']}.log",
            entry["source"],
            entry.get("how", ""),
            entry.get("absent", ""),
            entry.get("expect", {}),
        )
        for entry in entries
    ]


def answer(summary: LogSummary) -> dict[str, str | int | float | None]:
    """What perfscope answers, by the names of ``expect``."""
    data = to_object(summary)
    names = ("framework", "median_s", "samples_per_s", "iterations", "train_iterations")
    setup = ("gpus", "gbs", "gas", "seq_len")
    return {
        **{name: cast("str | int | float | None", data[name]) for name in (*names, *setup)},
        "logged_tflops": summary.logged.tflops_per_gpu,
        "allocated_bytes": summary.log.memory.allocated_bytes,
    }


def differences(excerpt: Excerpt, summary: LogSummary) -> list[str]:
    """Every answer that differs from the truth."""
    answers = answer(summary)
    expect: dict[str, str | int | float | None] = {"median_s": None, **excerpt.expect}
    return [
        f"{name}: {answers[name]}, not {truth}" for name, truth in expect.items() if not _equals(answers[name], truth)
    ]


def judge(excerpt: Excerpt, summary: LogSummary) -> Verdict:
    """The verdict on an excerpt."""
    if differences(excerpt, summary):
        return Verdict.WRONG
    return Verdict.RIGHT if "median_s" in excerpt.expect else Verdict.ABSENT


def _equals(value: str | int | float | None, truth: str | int | float | None) -> bool:
    if isinstance(value, float) and isinstance(truth, int | float):
        return abs(value - truth) <= TOLERANCE * max(1.0, abs(truth))
    return value == truth


def document() -> str:
    """The tables of the report."""
    rows: list[tuple[str, ...]] = []
    counts: dict[str, Counter[Verdict]] = {}
    for excerpt in load(EXCERPTS):
        summary = excerpt.read()
        verdict = judge(excerpt, summary)
        name = str(excerpt.expect["framework"])
        counts.setdefault(name, Counter())[verdict] += 1
        median_s = summary.times.median_s
        rows.append(
            (
                excerpt.path.stem,
                excerpt.source,
                summary.log.time_source or "n/a",
                "n/a" if median_s is None else f"{median_s:.6g}",
                excerpt.how or f"n/a: {excerpt.absent}",
                str(verdict),
            )
        )
    heads = ("Framework", *(str(verdict) for verdict in Verdict))
    totals: list[tuple[str | int, ...]] = [
        (name, *(count[verdict] for verdict in Verdict)) for name, count in sorted(counts.items())
    ]
    totals.append(("all", *(sum(count[verdict] for count in counts.values()) for verdict in Verdict)))
    foreign = [(excerpt.path.stem, excerpt.source, excerpt.read().status) for excerpt in load(FOREIGN)]
    tables = (
        _table(totals, heads),
        _table(rows, ("Excerpt", "Source", "Read from", "Median (s)", "By hand", "Verdict")),
        _table(foreign, ("Excerpt", "Source", "Answer")),
    )
    return "\n\n".join(tables)


def _table(rows: Sequence[Sequence[str | int]], headings: tuple[str, ...]) -> str:
    table: str = tabulate(rows, headings, tablefmt="pipe", disable_numparse=True)
    return table


if __name__ == "__main__":
    print(document())
