"""Operators and their distance from what the GPU can do, as data and as tables."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Annotated

from perfscope.analyzers.roofline.bounds import Bound, Ceilings, find_bound
from perfscope.analyzers.roofline.categories import categorize
from perfscope.analyzers.roofline.measurement import OperatorWork, RankWork
from perfscope.constants import GIGA, MB, NS_PER_MS, NS_PER_US
from perfscope.models.hardware import lookup_gpu
from perfscope.report import Column, Row, Section, in_unit, percent, percent_of
from perfscope.result import Doc, Figures, Result, figure
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


class OperatorShare(Figures, frozen=True):
    """The calls of an operator with inputs of the same shapes and types, or of a collective; means of a step."""

    operator: Annotated[str, Doc("Its name.")]
    category: Annotated[
        str,
        Doc("Its kind: ``matrix product``, ``norm``, ``elementwise`` and so on; ``other`` for an unknown one."),
    ]
    inputs: Annotated[str | None, Doc("Its tensors in words; absent where the trace does not state them.")]
    dtype: Annotated[str | None, Doc("The data type that it computes in; absent where it is not known.")]
    calls: Annotated[float, Doc("How often it is called.")]
    kernels: Annotated[float, Doc("Device events that it launches.")]
    device_us: Annotated[float, Doc("Their time.")]
    flops_per_call: Annotated[float | None, Doc("Operations of a call; absent where they cannot be counted.")]
    bytes_per_call: Annotated[
        float | None,
        Doc("What a call reads and writes at least, or moves over a link; absent where it cannot be counted."),
    ]
    tflops: Annotated[float | None, Doc("What it attains; absent likewise.")]
    tb_s: Annotated[float | None, Doc("What it attains; absent likewise.")]
    bound: Annotated[str | None, Doc("``compute``, ``memory`` or ``link``; absent where no ceiling is known.")]
    share: Annotated[float | None, Doc("Attainable time over measured time; absent where it is not known or doubted.")]
    regain_us: Annotated[float | None, Doc("Measured less attainable time; absent likewise.")]
    tensor_share: Annotated[
        float | None,
        Doc("Share of its time in kernels that multiply on tensor cores; absent without operations."),
    ]
    doubt: Annotated[str | None, Doc("Why the share is doubted; absent where it is not.")]


class CategoryTime(Figures, frozen=True):
    """Operators of one kind; means of a step."""

    category: Annotated[str, Doc("The kind.")]
    calls: Annotated[float, Doc("How often they are called.")]
    kernels: Annotated[float, Doc("Device events that they launch.")]
    device_us: Annotated[float, Doc("Their time.")]


class RankShares(Figures, frozen=True):
    """The operators of one rank; means of a step, or of the whole trace where it marks none."""

    rank: Annotated[int | None, Doc("The rank.")]
    steps: Annotated[int, Doc("How many steps the means are of; 0 for the whole trace.")]
    device_name: Annotated[str | None, Doc("The GPU; absent where the trace does not state one.")]
    memory_tb_s: Annotated[float | None, Doc("The ceiling of its memory; absent where none is known.")]
    total_us: Annotated[float, Doc("Time of all device events.")]
    has_shapes: Annotated[bool, Doc("Whether the trace states inputs of operators.")]
    graphs_us: Annotated[float, Doc("Time of kernels in CUDA graphs, whose operators are not known.")]
    categories: Annotated[tuple[CategoryTime, ...], Doc("Operators by kind, the most time first.")]
    operators: Annotated[tuple[OperatorShare, ...], Doc("Every operator, the one first that would regain the most.")]


class Roofline(Result, frozen=True):
    """``results.roofline``: how far operators are from what the GPU can do.

    Attributes:
        traced: The operators of every rank, in order.
        ceiling: What was measured on the machine; absent where the datasheet's peaks count.
    """

    traced: tuple[RankWork, ...]
    ceiling: Ceiling | None = None

    def with_ceiling(self, ceiling: Ceiling) -> Roofline:
        """The same against what was measured."""
        return Roofline(self.traced, ceiling)

    @figure
    def ceilings(self) -> str:
        """``measured`` by `perfscope ceiling`, or ``datasheet``."""
        return "datasheet" if self.ceiling is None else "measured"

    @figure
    def ranks(self) -> tuple[RankShares, ...]:
        """Each rank."""
        return tuple(map(self._shares, self.traced))

    def _shares(self, rank: RankWork) -> RankShares:
        steps, ceilings = max(1, rank.steps), self._ceilings(rank)
        return RankShares(
            rank=rank.rank,
            steps=rank.steps,
            device_name=rank.device_name or None,
            memory_tb_s=ceilings.tb_s(),
            total_us=rank.device_ns / steps / NS_PER_US,
            has_shapes=rank.has_shapes,
            graphs_us=rank.graph_ns / steps / NS_PER_US,
            categories=tuple(
                CategoryTime(name, calls / steps, kernels / steps, time / steps / NS_PER_US)
                for name, calls, kernels, time in _by_category(rank)
            ),
            operators=tuple(_share(work, find_bound(work, ceilings), steps) for work in self._sorted(rank)),
        )

    def _ceilings(self, rank: RankWork) -> Ceilings:
        gpu = lookup_gpu(rank.device_name) if rank.device_name else None
        fits = self.ceiling is not None and self.ceiling.device == rank.device_name
        return Ceilings(gpu, self.ceiling if fits else None)

    def _sorted(self, rank: RankWork) -> list[OperatorWork]:
        """The operators that would regain the most first, then those with the most time."""
        ceilings = self._ceilings(rank)
        return sorted(rank.operators, key=lambda work: (-(find_bound(work, ceilings).regain_ns or 0), -work.device_ns))

    def sections(self) -> tuple[Section, ...]:
        """A table of the rank with the most time."""
        rank = max(self.traced, key=lambda rank: _computing(rank) / max(1, rank.steps))
        ceilings, steps = self._ceilings(rank), max(1, rank.steps)
        bounds = [(work, find_bound(work, ceilings)) for work in self._sorted(rank)]
        rows = tuple(_row(work, bound, steps, rank.device_ns) for work, bound in bounds[:_MOST_ROWS])
        operators = Section("Roofline of operators", _COLUMNS, rows, tuple(self._notes(rank, bounds)))
        return operators, _categories_section(rank)

    def _notes(self, rank: RankWork, bounds: Sequence[tuple[OperatorWork, Bound]]) -> Iterator[str]:
        ceilings, steps = self._ceilings(rank), max(1, rank.steps)
        of = f"a mean of {rank.steps} steps" if rank.steps > 1 else "one step" if rank.steps else "the whole trace"
        which = f" of rank {rank.rank}" if len(self.traced) > 1 and rank.rank is not None else ""
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


def _share(work: OperatorWork, bound: Bound, steps: int) -> OperatorShare:
    return OperatorShare(
        operator=work.operator,
        category=categorize(work),
        inputs=work.shapes or None,
        dtype=work.dtype or None,
        calls=work.calls / steps,
        kernels=work.kernels / steps,
        device_us=work.device_ns / steps / NS_PER_US,
        flops_per_call=None if work.flops is None else work.flops / work.calls,
        bytes_per_call=None if work.bytes is None else work.bytes / work.calls,
        tflops=bound.tflops,
        tb_s=bound.tb_s,
        bound=bound.bound,
        share=bound.share,
        regain_us=None if bound.regain_ns is None else bound.regain_ns / steps / NS_PER_US,
        tensor_share=work.tensor_ns / work.device_ns if work.device_ns and work.flops else None,
        doubt=bound.doubt or None,
    )
