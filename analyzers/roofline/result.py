"""Operators and their distance from what the GPU can do, as data and as tables."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterator
from typing import Annotated

from perfscope.analyzers.roofline.bounds import Ceilings, find_bound
from perfscope.analyzers.roofline.measurement import NO_OPERATOR, OperatorWork, RankWork
from perfscope.constants import GIGA, MB, NS_PER_US, US_PER_MS
from perfscope.models.hardware import lookup_gpu
from perfscope.report import Section, percent_of
from perfscope.result import PERCENT, Column, Doc, Figures, Result, Table, figure
from perfscope.tables.ceiling import Ceiling

_MOST_ROWS = 30
_LONGEST_SHAPES = 60
_MOST_DOUBTED = 3
OTHER = "other"
#: The first pattern that a name has decides.
_CATEGORIES = (
    ("no operator", re.compile(rf"^{re.escape(NO_OPERATOR)}$")),
    ("fused (Triton)", re.compile(r"^triton")),
    ("optimizer", re.compile(r"^_fused_(?:adam|adamw|sgd|adagrad)|^_foreach_(?!copy|zero)|(?i:lamb|muon)")),
    ("convolution", re.compile(r"conv")),
    ("attention", re.compile(r"attention|attn|fmha|mha_")),
    ("matrix product", re.compile(r"mm\w*$|gemm|linear|matmul|experts")),
    ("norm", re.compile(r"norm")),
    ("softmax and loss", re.compile(r"softmax|nll_loss|cross_entropy|logsumexp|mse_loss|loss")),
    ("embedding and indexing", re.compile(r"embedding|index|gather|scatter|topk|sort|masked|one_hot|unique")),
    ("copy and layout", re.compile(r"copy|clone|^cat$|^stack|contiguous|transpose|permute|^fill|^zero|empty|pad")),
    ("random", re.compile(r"dropout|bernoulli|normal_|uniform_|rand")),
    ("reduction", re.compile(r"^(?:sum|mean|max|min|amax|amin|prod|var|std|any|all|argmax|argmin|cumsum|count)")),
    ("pooling", re.compile(r"pool|upsample|interpolate")),
    (
        "elementwise",
        re.compile(
            r"^(?:add|sub|rsub|mul|div|pow|sqrt|rsqrt|exp|log|neg|abs|sigmoid|tanh|silu|gelu|relu|threshold|clamp|where|"
            r"maximum|minimum|sin|cos|reciprocal|lerp|addc|eq|ne|lt|le|gt|ge|isnan|isinf|logical|bitwise|triu|tril|arange)"
        ),
    ),
)  # fmt: skip


def categorize(work: OperatorWork) -> str:
    """The kind of an operator.

    >>> work = OperatorWork("native_layer_norm", "", "", 1, 1, 1, 0, None, None)
    >>> categorize(work)
    'norm'
    """
    if work.moved_over_link:
        return "communication"
    return next((name for name, pattern in _CATEGORIES if pattern.search(work.operator)), OTHER)


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
    of_time: float | None


class CategoryTime(Figures, frozen=True):
    """Operators of one kind; means of a step."""

    category: Annotated[str, Doc("The kind.")]
    calls: Annotated[float, Doc("How often they are called.")]
    kernels: Annotated[float, Doc("Device events that they launch.")]
    device_us: Annotated[float, Doc("Their time.")]
    of_time: float | None


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


def _ms(us: float) -> float:
    return us / US_PER_MS


def _shorten(inputs: str) -> str:
    return inputs if len(inputs) <= _LONGEST_SHAPES else inputs[: _LONGEST_SHAPES - 3] + "..."


class Roofline(Result, frozen=True):
    """``results.roofline``: how far operators are from what the GPU can do.

    Attributes:
        traced: The operators of every rank, in order.
        ceiling: What was measured on the machine; absent where the datasheet's peaks count.
    """

    traced: tuple[RankWork, ...]
    ceiling: Ceiling | None = None

    TABLES = (
        Table(
            "Roofline of operators",
            "operators",
            (
                Column("Operator", "operator"),
                Column("Inputs", "inputs", _shorten),
                Column("Calls", "calls", None, 0),
                Column("Total (ms)", "device_us", _ms, 3),
                Column("Share (%)", "of_time"),
                Column("GFLOP/call", lambda row: row.flops_per_call / GIGA if row.flops_per_call else None, None, 2),
                Column("MB/call", "bytes_per_call", lambda size: size / MB, 2),
                Column("TFLOP/s", "tflops"),
                Column("TB/s", "tb_s", None, 3),
                Column("Bound", "bound"),
                Column("Of the attainable (%)", "share", PERCENT),
                Column("Tensor cores (%)", "tensor_share", PERCENT, 0),
                Column("Regain (ms)", "regain_us", _ms, 3),
            ),
        ),
        Table(
            "Operators by category",
            "categories",
            (
                Column("Category", "category"),
                Column("Calls", "calls", None, 0),
                Column("Kernels", "kernels", None, 0),
                Column("Total (ms)", "device_us", _ms, 3),
                Column("Share (%)", "of_time"),
            ),
        ),
    )

    def with_ceiling(self, ceiling: Ceiling) -> Roofline:
        """The same against what was measured."""
        return Roofline(self.traced, ceiling)

    @figure
    def ceilings(self) -> str:
        """``measured`` by `perfscope doctor --ceiling`, or ``datasheet``."""
        return "datasheet" if self.ceiling is None else "measured"

    @figure
    def ranks(self) -> tuple[RankShares, ...]:
        """Each rank."""
        return tuple(map(self._shares, self.traced))

    def _shares(self, rank: RankWork) -> RankShares:
        steps, ceilings = max(1, rank.steps), self._ceilings(rank)
        operators = [_share(work, ceilings, steps, rank.device_ns) for work in rank.operators]
        return RankShares(
            rank=rank.rank,
            steps=rank.steps,
            device_name=rank.device_name or None,
            memory_tb_s=ceilings.tb_s(),
            total_us=rank.device_ns / steps / NS_PER_US,
            has_shapes=rank.has_shapes,
            graphs_us=rank.graph_ns / steps / NS_PER_US,
            categories=_by_category(rank, steps),
            operators=tuple(sorted(operators, key=lambda each: (-(each.regain_us or 0), -each.device_us))),
        )

    def _ceilings(self, rank: RankWork) -> Ceilings:
        gpu = lookup_gpu(rank.device_name) if rank.device_name else None
        fits = self.ceiling is not None and self.ceiling.device == rank.device_name
        return Ceilings(gpu, self.ceiling if fits else None)

    def sections(self) -> tuple[Section, ...]:
        """A table of the rank with the most time, and its kinds of operators."""
        rank = max(self.traced, key=lambda rank: _computing(rank) / max(1, rank.steps))
        shares = self._shares(rank)
        operators, categories = self.TABLES
        note = "Kernels by the kind of their operator; copies by the host and CUDA graphs are not among them."
        return (
            operators.section(shares.operators[:_MOST_ROWS], self._notes(rank, shares)),
            categories.section(shares.categories, (note,)),
        )

    def _notes(self, rank: RankWork, shares: RankShares) -> Iterator[str]:
        of = f"a mean of {rank.steps} steps" if rank.steps > 1 else "one step" if rank.steps else "the whole trace"
        which = f" of rank {rank.rank}" if len(self.traced) > 1 and rank.rank is not None else ""
        yield (
            f"Of {of}{which}. Bytes are the inputs and outputs, once each: a lower bound of what moves. Regain is the "
            "time above the attainable one: no change regains more without less work."
        )
        yield _describe_ceilings(self._ceilings(rank), rank)
        if not rank.has_shapes:
            yield "The trace states no inputs of operators: profile with `--shapes`."
        known = sum(each.device_us for each in shares.operators if each.share is not None)
        total = sum(each.regain_us or 0 for each in shares.operators) / US_PER_MS
        share = percent_of(known, shares.total_us) or 0.0
        yield f"{share:.1f} % of the time has a known share of the attainable; all of it would regain {total:.3f} ms."
        doubted = [each for each in shares.operators if each.doubt]
        for each in doubted[:_MOST_DOUBTED]:
            yield f"Doubted: {each.operator} of {each.inputs or ''}: {each.doubt}."
        if len(doubted) > _MOST_DOUBTED:
            yield f"{len(doubted) - _MOST_DOUBTED} more are doubted, in --format json."
        if rank.graph_ns:
            yield f"{percent_of(rank.graph_ns, rank.device_ns):.1f} % of the time is in CUDA graphs, without operators."
        if len(shares.operators) > _MOST_ROWS:
            yield f"{len(shares.operators) - _MOST_ROWS} more rows are in --format json."


def _by_category(rank: RankWork, steps: int) -> tuple[CategoryTime, ...]:
    """Each kind of operators with its calls, kernels and time, the most time first; they add up to all kernels."""
    totals: defaultdict[str, list[int]] = defaultdict(lambda: [0, 0, 0])
    for work in rank.operators:
        for place, value in enumerate((work.calls, work.kernels, work.device_ns)):
            totals[categorize(work)][place] += value
    ordered = sorted(totals.items(), key=lambda entry: (-entry[1][2], entry[0]))
    return tuple(
        CategoryTime(name, calls / steps, kernels / steps, time / steps / NS_PER_US, percent_of(time, rank.device_ns))
        for name, (calls, kernels, time) in ordered
    )


def _computing(rank: RankWork) -> int:
    return sum(work.device_ns for work in rank.operators if not work.moved_over_link)


def _describe_ceilings(ceilings: Ceilings, rank: RankWork) -> str:
    memory = ceilings.tb_s()
    if memory is None:
        return f"{rank.device_name or 'The GPU'} has no listed rate of memory, so no attainable time is known."
    source = "measured by `perfscope doctor --ceiling`" if ceilings.measured else "by its datasheet"
    rates = [f"{memory:.3g} TB/s"]
    for dtype in ("bf16", "fp8", "tf32", "fp32"):
        peak = ceilings.tflops(dtype)
        if peak is not None and any(work.dtype == dtype and work.flops for work in rank.operators):
            rates.append(f"{peak:.4g} TFLOP/s in {dtype}")
    return f"Attainable on {rank.device_name}, {source}: {', '.join(rates)}."


def _share(work: OperatorWork, ceilings: Ceilings, steps: int, whole_ns: int) -> OperatorShare:
    bound = find_bound(work, ceilings)
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
        doubt=bound.doubt,
        of_time=percent_of(work.device_ns, whole_ns),
    )
