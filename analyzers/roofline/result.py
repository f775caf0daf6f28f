"""Operators and their distance from what the GPU can do, as data and as tables."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from perfscope.analyzers.roofline.bounds import Bound, Ceilings, find_bound
from perfscope.analyzers.roofline.categories import categorize
from perfscope.analyzers.roofline.measurement import OperatorWork, RankWork
from perfscope.constants import GIGA, MB, NS_PER_MS, NS_PER_US
from perfscope.models.hardware import lookup_gpu
from perfscope.report import Column, Json, Row, Section, in_unit, percent, percent_of
from perfscope.tables.ceiling import Ceiling

_MOST_ROWS = 30
_LONGEST_SHAPES = 60
_MOST_DOUBTED = 3
_COLUMNS = (
    Column("Operator"),
    Column("Inputs"),
    Column("Calls", 0),
    Column("Total (ms)", 3),
    Column("Share (%)", 1),
    Column("GFLOP/call", 2),
    Column("MB/call", 2),
    Column("TFLOP/s", 1),
    Column("TB/s", 3),
    Column("Bound"),
    Column("Of the attainable (%)", 1),
    Column("Tensor cores (%)", 0),
    Column("Regain (ms)", 3),
)


@dataclass(frozen=True, slots=True)
class Roofline:
    """The operators of every rank.

    Attributes:
        ranks: The ranks, in order.
        ceiling: What was measured on the machine; absent where the datasheet's peaks count.
    """

    ranks: tuple[RankWork, ...]
    ceiling: Ceiling | None = None

    def with_ceiling(self, ceiling: Ceiling) -> Roofline:
        """The same against what was measured."""
        return replace(self, ceiling=ceiling)

    def _ceilings(self, rank: RankWork) -> Ceilings:
        gpu = lookup_gpu(rank.device_name) if rank.device_name else None
        fits = self.ceiling is not None and self.ceiling.device == rank.device_name
        return Ceilings(gpu, self.ceiling if fits else None)

    def data(self) -> Json:
        """The value of ``results.roofline``; means of a step, or of the whole trace where it marks none."""
        return {
            "ceilings": "measured" if self.ceiling is not None else "datasheet",
            "ranks": [self._rank_data(rank) for rank in self.ranks],
        }

    def _rank_data(self, rank: RankWork) -> Json:
        steps, ceilings = max(1, rank.steps), self._ceilings(rank)
        memory = ceilings.tb_s()
        return {
            "rank": rank.rank,
            "steps": rank.steps,
            "device_name": rank.device_name or None,
            "memory_tb_s": memory,
            "total_us": rank.device_ns / steps / NS_PER_US,
            "has_shapes": rank.has_shapes,
            "graphs_us": rank.graph_ns / steps / NS_PER_US,
            "categories": [
                {
                    "category": name,
                    "calls": calls / steps,
                    "kernels": kernels / steps,
                    "device_us": time / steps / NS_PER_US,
                }
                for name, calls, kernels, time in _by_category(rank)
            ],
            "operators": [_operator_data(work, find_bound(work, ceilings), steps) for work in self._sorted(rank)],
        }

    def _sorted(self, rank: RankWork) -> list[OperatorWork]:
        """The operators that would regain the most first, then those with the most time."""
        ceilings = self._ceilings(rank)
        return sorted(rank.operators, key=lambda work: (-(find_bound(work, ceilings).regain_ns or 0), -work.device_ns))

    def sections(self) -> tuple[Section, ...]:
        """A table of the rank with the most time."""
        rank = max(self.ranks, key=lambda rank: _computing(rank) / max(1, rank.steps))
        ceilings, steps = self._ceilings(rank), max(1, rank.steps)
        bounds = [(work, find_bound(work, ceilings)) for work in self._sorted(rank)]
        rows = tuple(_row(work, bound, steps, rank.device_ns) for work, bound in bounds[:_MOST_ROWS])
        operators = Section("Roofline of operators", _COLUMNS, rows, tuple(self._notes(rank, bounds)))
        return operators, _categories_section(rank)

    def _notes(self, rank: RankWork, bounds: Sequence[tuple[OperatorWork, Bound]]) -> Iterator[str]:
        ceilings, steps = self._ceilings(rank), max(1, rank.steps)
        of = f"a mean of {rank.steps} steps" if rank.steps > 1 else "one step" if rank.steps else "the whole trace"
        which = f" of rank {rank.rank}" if len(self.ranks) > 1 and rank.rank is not None else ""
        yield (
            f"Of {of}{which}. Bytes are the inputs and outputs, once each: a lower bound of what moves. Regain is the "
            "time above the attainable one: no change regains more without less work."
        )
        yield _describe_ceilings(ceilings, rank)
        if not rank.has_shapes:
            yield "The trace states no inputs of operators: profile with `--shapes`."
        known = sum(work.device_ns for work, bound in bounds if bound.share is not None)
        doubted = [(work, bound) for work, bound in bounds if bound.doubt]
        total = sum(bound.regain_ns or 0 for _, bound in bounds) / steps / NS_PER_MS
        share = percent_of(known, rank.device_ns) or 0.0
        yield f"{share:.1f} % of the time has a known share of the attainable; all of it would regain {total:.3f} ms."
        for work, bound in doubted[:_MOST_DOUBTED]:
            yield f"Doubted: {work.operator} of {work.shapes}: {bound.doubt}."
        if len(doubted) > _MOST_DOUBTED:
            yield f"{len(doubted) - _MOST_DOUBTED} more are doubted, in --format json."
        if rank.graph_ns:
            yield f"{percent_of(rank.graph_ns, rank.device_ns):.1f} % of the time is in CUDA graphs, without operators."
        if len(bounds) > _MOST_ROWS:
            yield f"{len(bounds) - _MOST_ROWS} more rows are in --format json."


def _by_category(rank: RankWork) -> list[tuple[str, int, int, int]]:
    """Each kind of operators with its calls, kernels and time, the most time first; they add up to all kernels."""
    totals: dict[str, tuple[int, int, int]] = {}
    for work in rank.operators:
        calls, kernels, time = totals.get(categorize(work), (0, 0, 0))
        totals[categorize(work)] = calls + work.calls, kernels + work.kernels, time + work.device_ns
    return sorted(((name, *sums) for name, sums in totals.items()), key=lambda entry: (-entry[3], entry[0]))


def _categories_section(rank: RankWork) -> Section:
    steps = max(1, rank.steps)
    columns = (
        Column("Category"),
        Column("Calls", 0),
        Column("Kernels", 0),
        Column("Total (ms)", 3),
        Column("Share (%)"),
    )
    rows = tuple(
        (name, calls / steps, kernels / steps, time / steps / NS_PER_MS, percent_of(time, rank.device_ns))
        for name, calls, kernels, time in _by_category(rank)
    )
    note = "Kernels by the kind of their operator; copies by the host and CUDA graphs are not among them."
    return Section("Operators by category", columns, rows, (note,))


def _computing(rank: RankWork) -> int:
    return sum(work.device_ns for work in rank.operators if not work.moved_over_link)


def _describe_ceilings(ceilings: Ceilings, rank: RankWork) -> str:
    memory = ceilings.tb_s()
    if memory is None:
        return f"{rank.device_name or 'The GPU'} has no listed rate of memory, so no attainable time is known."
    source = "measured by `perfscope ceiling`" if ceilings.measured else "by its datasheet"
    rates = [f"{memory:.3g} TB/s"]
    for dtype in ("bf16", "fp8", "tf32", "fp32"):
        peak = ceilings.tflops(dtype)
        if peak is not None and any(work.dtype == dtype and work.flops for work in rank.operators):
            rates.append(f"{peak:.4g} TFLOP/s in {dtype}")
    return f"Attainable on {rank.device_name}, {source}: {', '.join(rates)}."


def _row(work: OperatorWork, bound: Bound, steps: int, whole: int) -> Row:
    shapes = work.shapes if len(work.shapes) <= _LONGEST_SHAPES else work.shapes[: _LONGEST_SHAPES - 3] + "..."
    return (
        work.operator,
        shapes or None,
        work.calls / steps,
        work.device_ns / steps / NS_PER_MS,
        percent_of(work.device_ns, whole),
        in_unit(work.flops / work.calls, GIGA) if work.flops else None,
        None if work.bytes is None else work.bytes / work.calls / MB,
        bound.tflops,
        bound.tb_s,
        bound.bound,
        percent(bound.share),
        percent_of(work.tensor_ns, work.device_ns) if work.flops else None,
        None if bound.regain_ns is None else bound.regain_ns / steps / NS_PER_MS,
    )


def _operator_data(work: OperatorWork, bound: Bound, steps: int) -> Json:
    return {
        "operator": work.operator,
        "category": categorize(work),
        "inputs": work.shapes or None,
        "dtype": work.dtype or None,
        "calls": work.calls / steps,
        "kernels": work.kernels / steps,
        "device_us": work.device_ns / steps / NS_PER_US,
        "flops_per_call": None if work.flops is None else work.flops / work.calls,
        "bytes_per_call": None if work.bytes is None else work.bytes / work.calls,
        "tflops": bound.tflops,
        "tb_s": bound.tb_s,
        "bound": bound.bound,
        "share": bound.share,
        "regain_us": None if bound.regain_ns is None else bound.regain_ns / steps / NS_PER_US,
        "tensor_share": work.tensor_ns / work.device_ns if work.device_ns and work.flops else None,
        "doubt": bound.doubt or None,
    }
