"""nanotron's published rows beside what ``perfscope plan`` estimates of their memory.

``python -m tests.analyzers.plan.nanotron`` prints the tables on memory of reports/predictions.md. Half of the rows
fitted three constants of ``analyzers/plan``; the other half is the test.
"""

from __future__ import annotations

import csv
import gzip
import random
import sys
from collections.abc import Callable, Sequence
from statistics import median
from typing import NamedTuple

from perfscope.analyzers.plan import (
    Attention,
    Loss,
    MemoryEstimate,
    OptimizerKind,
    ParallelLayout,
    StatePrecision,
    estimate_ends,
    find_stage,
    state_bytes_of,
)
from perfscope.constants import GB, GIB
from perfscope.models.conventions import Checkpointing
from perfscope.models.parameter_counts import total_parameters
from perfscope.models.transformer import Transformer
from perfscope.renderers.markdown import render_sections
from perfscope.report import Column, Section, percent
from tests.conftest import ROOT

_SEQ_LEN = 4096
_ORDER = ("layers", "tp", "pp", "dp", "zero", "micro_batch", "micro_batches")
_H100_BYTES = 80 * GB
_NEAR = 0.05


class Published(NamedTuple):
    """A row: its layout, and the bytes that the allocator of rank 0 reserved; None where the run failed."""

    model: Transformer
    layout: ParallelLayout
    measured: float | None
    is_test: bool

    def estimates(self) -> tuple[MemoryEstimate, ...]:
        """The ends of the pipeline."""
        return estimate_ends(
            self.model,
            self.layout,
            parameters=total_parameters(self.model),
            seq_len=_SEQ_LEN,
            precision=state_bytes_of(StatePrecision.NANOTRON, OptimizerKind.ADAM),
            attention=Attention.FLASH,
        )

    def reserved(self) -> float:
        """What is estimated of rank 0."""
        return self.estimates()[0].reserved

    def reserved_by_nearer_way(self) -> float:
        """As ``reserved``, or with gathered inputs that stay for the backward pass, where this is nearer."""
        first, stage = self.estimates()[0], find_stage(self.model, self.layout, is_balanced=True)
        tokens = _SEQ_LEN * self.layout.micro_batch * stage.layers * stage.in_flight
        kept = 2 * 2 * self.model.hidden * (1 - 1 / self.layout.tensor) * tokens
        both = (first.reserved, first.reserved * (1 + kept / first.total))
        return min(both, key=lambda estimate: abs(estimate - (self.measured or 0)))

    def fit_probability(self) -> float:
        """What is said of the fuller end, on an H100 of 80 GB."""
        return min(end.fit_probability(_H100_BYTES) for end in self.estimates())

    @property
    def can_start(self) -> bool:
        """nanotron's 1F1B asserts a micro-batch for each stage but one."""
        return (self.layout.micro_batches or 1) >= self.layout.pipeline - 1


def read_rows() -> list[Published]:
    """All rows of nanotron, in an order of their own."""
    with gzip.open(ROOT / "fixtures" / "published" / "step_times.csv.gz", "rt") as file:
        lines = [line for line in csv.DictReader(file) if line["source"] == "nanotron"]
    lines.sort(key=lambda line: [int(line[name]) for name in _ORDER])
    order = list(range(len(lines)))
    random.Random(43).shuffle(order)
    tested = set(order[len(lines) // 2 :])
    return [_read_row(line, is_test=index in tested) for index, line in enumerate(lines)]


def _read_row(line: dict[str, str], *, is_test: bool) -> Published:
    hidden, heads = int(line["hidden"]), int(line["heads"])
    model = Transformer(
        "nanotron",
        layers=int(line["layers"]),
        hidden=hidden,
        heads=heads,
        kv_heads=heads,
        head_dim=hidden // heads,
        ffn=int(line["ffn"]),
        mlp_matrices=int(line["mlp_matrices"]),
        vocabulary=int(line["vocabulary"]),
        tied=line["tied"] == "1",
        layer_vectors=2 * hidden,
        other_vectors=hidden,
    )
    layout = ParallelLayout(
        data=int(line["dp"]),
        tensor=int(line["tp"]),
        pipeline=int(line["pp"]),
        zero=int(line["zero"]),
        checkpointing=Checkpointing.NONE,
        micro_batch=int(line["micro_batch"]),
        micro_batches=int(line["micro_batches"]),
        sequence_parallel=True,
        loss=Loss.SHARDED,
    )
    memory = line["memory_gib"]
    return Published(model, layout, float(memory) * GIB if memory else None, is_test)


def errors(rows: Sequence[Published], estimate: Callable[[Published], float] = Published.reserved) -> list[float]:
    """The relative error of each row that was measured."""
    return [estimate(row) / row.measured - 1 for row in rows if row.measured]


def find_failures(rows: Sequence[Published], least: float) -> tuple[int, int, int, float, float]:
    """Rows that failed and were said to, ran but were said to fail, failed unsaid; precision and recall.

    A row is said to fail where the probability that it fits is below ``least``.
    """
    pairs = [(row.measured is None, row.fit_probability() < least) for row in rows]
    hits, false, missed = map(pairs.count, ((True, True), (False, True), (True, False)))
    return hits, false, missed, hits / (hits + false), hits / (hits + missed)


def sections(rows: Sequence[Published]) -> tuple[Section, ...]:
    """The tables of the report."""
    spread = [row for row in rows if row.layout.tensor > 1]
    groups = {
        "all": errors(rows),
        "without tensor parallelism": errors([row for row in rows if row.layout.tensor == 1]),
        "tensor parallelism, no pipeline": errors([row for row in spread if row.layout.pipeline == 1]),
        "tensor parallelism and pipeline": errors([row for row in spread if row.layout.pipeline > 1]),
        "all, by the nearer of two ways": errors(rows, Published.reserved_by_nearer_way),
    }
    titles = ("Number", "Median (%)", "90 % below (%)", "Within 5 % (%)", "Bias (%)")
    columns = (Column("Rows of the test half"), *(Column(title, 1) for title in titles))
    memory = tuple((name, *_summarize(found)) for name, found in groups.items())
    parts = {"all": rows, "that nanotron starts": [row for row in rows if row.can_start]}
    failures = tuple(
        (f"{least:.0%}", f"{name}: {len(part)}", *find_failures(part, least))
        for least in (0.5, 0.9)
        for name, part in parts.items()
    )
    counts = ("Rows of the test half", "Failed, said so", "Ran, said to fail", "Failed, not said")
    answers = (Column("Said to fail below"), *map(Column, counts), Column("Precision", 2), Column("Recall", 2))
    return (
        Section("Memory: nanotron on H100", columns, memory),
        Section("Does it fit: nanotron on H100", answers, failures),
    )


def _summarize(found: list[float]) -> tuple[int | float | None, ...]:
    sizes = sorted(map(abs, found))
    near = sum(size <= _NEAR for size in sizes) / len(sizes)
    return len(sizes), *map(percent, (median(sizes), sizes[int(0.9 * len(sizes))], near, median(found)))


if __name__ == "__main__":
    sys.stdout.write(render_sections(sections([row for row in read_rows() if row.is_test]), 2))
