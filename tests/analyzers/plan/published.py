"""Published layouts beside what ``perfscope plan`` estimates of their memory.

``python -m tests.analyzers.plan.published`` prints the tables on memory of reports/predictions.md. Half of nanotron's
rows fitted three constants of ``analyzers/plan``; its other half and all other sources are the test.
"""

from __future__ import annotations

import csv
import gzip
import random
import sys
from collections.abc import Sequence
from dataclasses import replace
from itertools import pairwise
from statistics import fmean, median
from typing import NamedTuple

from perfscope.analyzers.plan import (
    Attention,
    Loss,
    MemoryEstimate,
    OptimizerKind,
    ParallelLayout,
    PipelineEnd,
    Stage,
    StatePrecision,
    estimate_ends,
    find_stage,
    state_bytes_of,
)
from perfscope.constants import GIB
from perfscope.models.conventions import Checkpointing
from perfscope.models.hardware import find_gpu
from perfscope.models.parameter_counts import total_parameters
from perfscope.renderers.markdown import render_sections
from perfscope.report import Column, Row, Section, percent
from perfscope.sources.models.presets import find_preset
from perfscope.sources.step_times import parse_row, read_step_times
from perfscope.tables.step_time import StepSetup
from tests.conftest import ROOT

_TABLE = ROOT / "fixtures" / "published" / "step_times.csv.gz"
_ORDER = ("layers", "tp", "pp", "dp", "zero", "micro_batch", "micro_batches")
_COPIED = ("data", "tensor", "pipeline", "zero", "checkpointing", "micro_batch", "micro_batches", "context", "virtual")
#: States and loss of each source's software: scripts/train/yamls/pretrain of llm-foundry, ``grad_sync_dtype`` in
#: */*.yaml of dgxc-benchmarking, ``_benchmark_common`` of Megatron-Bridge (perf_recipes/_common.py).
_SOFTWARE = {
    "vtrain": (StatePrecision.MIXED, Loss.SHARDED),
    "llm-foundry": (StatePrecision.AUTOCAST, Loss.FUSED),
    **dict.fromkeys(("dgxc", "dgxc-experts"), (StatePrecision.MIXED, Loss.SHARDED)),
    **dict.fromkeys(("megatron-bridge", "megatron-bridge-experts"), (StatePrecision.MIXED, Loss.COMPILED)),
}


def _to_layout(setup: StepSetup, loss: Loss, *, dropout: bool = False) -> ParallelLayout:
    copied = {name: getattr(setup, name) for name in (*_COPIED, "expert", "sequence_parallel")}
    return ParallelLayout(**copied, loss=loss, dropout=dropout)


def _estimate(setup: StepSetup, states: StatePrecision, layout: ParallelLayout) -> tuple[MemoryEstimate, ...]:
    return estimate_ends(
        setup.model,
        layout,
        parameters=total_parameters(setup.model),
        seq_len=setup.seq_len,
        precision=state_bytes_of(states, OptimizerKind.ADAM, in_fp8=setup.dtype.endswith(("fp8", "fp4"))),
        attention=Attention.FLASH,
    )


class Published(NamedTuple):
    """A row of nanotron, and the bytes that the allocator of rank 0 reserved; None where the run failed."""

    setup: StepSetup
    measured: float | None
    is_test: bool

    @property
    def layout(self) -> ParallelLayout:
        """The setup as a layout."""
        return _to_layout(self.setup, Loss.SHARDED)

    def stage(self, end: PipelineEnd) -> Stage:
        """An end of the pipeline."""
        return find_stage(self.setup.model, self.layout, end, is_balanced=True)

    def estimates(self) -> tuple[MemoryEstimate, ...]:
        """The ends of the pipeline."""
        return _estimate(self.setup, StatePrecision.NANOTRON, self.layout)

    def ways(self) -> tuple[tuple[MemoryEstimate, ...], ...]:
        """The ends where sequence parallelism gathers its inputs again, and where it keeps them."""
        kept = []
        for end, stage in zip(self.estimates(), map(self.stage, PipelineEnd), strict=False):
            tokens = self.setup.seq_len * self.setup.micro_batch * stage.layers * stage.in_flight
            more = 2 * 2 * self.setup.model.hidden * (1 - 1 / self.setup.tensor) * tokens
            kept.append(replace(end, activations=end.activations + round(more)))
        return self.estimates(), tuple(kept)

    def errors(self) -> tuple[float, ...]:
        """The relative error of what is estimated of rank 0, in each way."""
        return tuple(way[0].reserved / self.measured - 1 for way in self.ways()) if self.measured else ()

    def fit_probability(self) -> float:
        """What is said of the fuller end: the mean of both ways, because no column names one."""
        limit = find_gpu(self.setup.gpu).memory_bytes
        return fmean(min(end.fit_probability(limit) for end in way) for way in self.ways())

    @property
    def can_start(self) -> bool:
        """nanotron's 1F1B asserts a micro-batch for each stage but one.

        Of rows with three or more stages without a layer two in 108 ran, of whatever micro-batch.
        """
        stages, output = self.setup.pipeline, self.stage(PipelineEnd.LAST).number
        return self.setup.micro_batches >= stages - 1 and stages - 1 - output < 3


def read_rows() -> list[Published]:
    """All rows of nanotron, in an order of their own."""
    with gzip.open(_TABLE, "rt") as file:
        lines = [line for line in csv.DictReader(file) if line["source"] == "nanotron"]
    lines.sort(key=lambda line: [int(line[name]) for name in _ORDER])
    order = list(range(len(lines)))
    random.Random(43).shuffle(order)
    tested = set(order[len(lines) // 2 :])
    return [_read_row(line, is_test=index in tested) for index, line in enumerate(lines)]


def _read_row(line: dict[str, str], *, is_test: bool) -> Published:
    # A row that failed has no step, and the batch of 26 rows is not the product.
    gbs = int(line["dp"]) * int(line["micro_batch"]) * int(line["micro_batches"])
    setup = parse_row({**line, "step_s": "1", "gbs": str(gbs)}, "nanotron").setup
    return Published(setup, float(line["memory_gib"]) * GIB if line["memory_gib"] else None, is_test)


def errors(rows: Sequence[Published]) -> list[float]:
    """The relative error of each row that was measured."""
    return [row.errors()[0] for row in rows if row.measured]


def find_failures(rows: Sequence[Published], least: float) -> tuple[int, int, int, float, float]:
    """Rows that failed and were said to, ran but were said to fail, failed unsaid; precision and recall.

    A row is said to fail where the probability that it fits is below ``least``.
    """
    pairs = [(row.measured is None, row.fit_probability() < least) for row in rows]
    hits, false, missed = map(pairs.count, ((True, True), (False, True), (True, False)))
    return hits, false, missed, hits / (hits + false), hits / (hits + missed)


def compare_probabilities(rows: Sequence[Published]) -> list[tuple[float, float, int, float, float]]:
    """For each interval of the probability: its ends, the rows, the mean of what was said, and the share that ran."""
    pairs = [(row.fit_probability(), row.measured is not None) for row in rows]
    found = []
    for low, high in pairwise((0.0, 0.1, 0.3, 0.5, 0.7, 0.9, 1.01)):
        said, ran = zip(*(pair for pair in pairs if low <= pair[0] < high), strict=True)
        found.append((low, min(1, high), len(said), fmean(said), fmean(ran)))
    return found


def fit_probabilities() -> dict[str, list[float]]:
    """The probability that each layout of other sources fits, all of which ran."""
    found: dict[str, list[float]] = {source: [] for source in _SOFTWARE}
    for row in read_step_times(_TABLE).rows:
        if row.source in found:
            states, loss = _SOFTWARE[row.source]
            ends = _estimate(row.setup, states, _to_layout(row.setup, loss, dropout=row.source == "vtrain"))
            limit = find_gpu(row.setup.gpu).memory_bytes
            found[row.source].append(min(end.fit_probability(limit) for end in ends))
    return found


def torchtitan_errors() -> list[float]:
    """Of rows with full recomputation, and the GiB reserved, of benchmarks/llama3_h100_202412_torchtitan.md.

    A local batch is as many micro-batches as stages (torchtitan/parallelisms/pipelining_utils.py at 9dec370).
    """
    rows = [("llama3-8b", 1, 1, n, 8 // n, 1, gib) for n, gib in ((1, 83.9), (2, 84.2), (4, 84.0), (8, 84.5))]
    rows += [("llama3-70b", 8, 1, 1, 32, 16, gib) for gib in (71.9, 67.6)]
    rows += [("llama3-405b", 8, 8, 1, 8, 4, gib) for gib in (82.5, 72.7)]
    rows += [("llama3-405b", 8, 8, n, 8 // n, 1, gib) for n, gib in ((1, 75.3), (2, 75.9), (4, 77.1), (8, 84.9))]
    found, full = [], Checkpointing.FULL
    for name, tensor, pipeline, context, data, micro_batch, gib in rows:
        model, seq_len = find_preset(name), 8192 if micro_batch > 1 else 32768 * context
        assert model is not None
        setup = StepSetup(model.transformer, "h100-sxm", seq_len, micro_batch, pipeline, "bf16", tensor, pipeline)
        setup = replace(setup, data=data, context=context, zero=3, checkpointing=full, sequence_parallel=True)
        ends = _estimate(setup, StatePrecision.AUTOCAST, _to_layout(setup, Loss.PLAIN))
        found.append(max(end.reserved for end in ends) / (gib * GIB) - 1)
    return found


def sections(rows: Sequence[Published]) -> tuple[Section, ...]:
    """The tables of the report."""
    groups = {
        "nanotron, all": errors(rows),
        "nanotron without tensor parallelism": errors([row for row in rows if row.setup.tensor == 1]),
        "nanotron, by the nearer of two ways": [min(row.errors(), key=abs) for row in rows if row.measured],
        "torchtitan with full recomputation": torchtitan_errors(),
    }
    memory = tuple((name, *_summarize(found)) for name, found in groups.items())
    startable = [row for row in rows if row.can_start]
    parts = {"all": rows, "that nanotron starts": startable}
    failures = tuple(
        (f"{least:.0%}", f"{name}: {len(part)}", *find_failures(part, least))
        for least in (0.5, 0.9)
        for name, part in parts.items()
    )
    shares = tuple(
        (f"{low:.0%} to {high:.0%}", count, percent(mean), percent(share))
        for low, high, count, mean, share in compare_probabilities(startable)
    )
    bounds = ((0.9, 2), (0.5, 0.9), (0, 0.5))
    ran: tuple[Row, ...] = tuple(
        (source, len(found), *(sum(low <= one < high for one in found) for low, high in bounds))
        for source, found in fit_probabilities().items()
    )
    titles = ("Number", "Median (%)", "90 % below (%)", "Within 5 % (%)", "Bias (%)")
    counts = ("Said to fail below", "Rows of the test half", "Failed, said so", "Ran, said to fail", "Failed, not said")
    said = ("Said to fit with", "Rows that nanotron starts", "Said in the mean (%)", "Ran (%)")
    fits = ("Source", "Rows", "Said to fit with 90 % or more", "With 50 to 90 %", "With less")
    answers = (*map(Column, counts), Column("Precision", 2), Column("Recall", 2))
    return (
        Section("Memory: reserved", (Column("Rows"), *(Column(title, 1) for title in titles)), memory),
        Section("Does it fit: nanotron on H100", answers, failures),
        Section("Said to fit, and ran: nanotron on H100", tuple(map(Column, said)), shares),
        Section("Does it fit: layouts that ran", tuple(map(Column, fits)), ran),
    )


def _summarize(found: list[float]) -> tuple[int | float | None, ...]:
    sizes = sorted(map(abs, found))
    near = sum(size <= 0.05 for size in sizes) / len(sizes)
    return len(sizes), *map(percent, (median(sizes), sizes[int(0.9 * len(sizes))], near, median(found)))


if __name__ == "__main__":
    sys.stdout.write(render_sections(sections([row for row in read_rows() if row.is_test]), 2))
