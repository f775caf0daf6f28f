"""How near each operator is to what its GPU can do, by the shapes of its inputs.

An operator needs at least ``flops / peak`` and at least ``bytes / bandwidth``; the longer of the two is its attainable
time, and says what bounds it. Peaks are those of hardware.toml, or what ``doctor --ceiling`` measured, where that is
known. A share above 1 cannot be: the data was in the cache, or the count is wrong. It is doubted, and regains
nothing. What communicates is in ``collectives``.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Annotated, NamedTuple

import numpy as np

from perfscope.analyzers.tflops.byte_rules import count_bytes
from perfscope.analyzers.tflops.counted_calls import count_operators
from perfscope.constants import GIGA, MB, NS_PER_S, NS_PER_US, TERA, US_PER_MS
from perfscope.errors import NoDevice
from perfscope.measures.doubt import TOLERANCE
from perfscope.measures.marked_steps import describe_mean, in_steps
from perfscope.measures.rank_labels import in_order
from perfscope.models.hardware import Gpu, lookup_gpu
from perfscope.report import MOST_ROWS, Section, percent_of
from perfscope.result import PERCENT, Column, Doc, Figures, Result, Table, figure
from perfscope.tables.ceiling import Ceiling
from perfscope.tables.columns import Int64
from perfscope.tables.kernel_classes import short_name
from perfscope.tables.kernel_precision import UNNAMED, element_precision, product_precision
from perfscope.tables.operator_details import OperatorInputs
from perfscope.tables.trace import ABSENT, GRAPH_LAUNCH, Trace, Work, join

_MOST_TENSORS = 4
_ATEN = "aten::"
NO_OPERATOR = "(no operator)"


@dataclass(frozen=True, slots=True)
class OperatorWork:
    """The calls of one operator with inputs of the same shapes and types, of all steps.

    Shapes are in words (``bf16 8192x2048, 2048x6144``), ``dtype`` is as peaks are listed; both ``""`` where not known.
    Operations are 0 for those that only move data; bytes are what all calls read and write at least.
    """

    operator: str
    shapes: str
    dtype: str
    calls: int
    kernels: int
    device_ns: int
    flops: int | None
    bytes: int | None


@dataclass(frozen=True, slots=True)
class RankWork:
    """The operators of one trace, those with the most time first; 0 steps for the whole trace."""

    rank: int | None
    steps: int
    device_name: str
    operators: tuple[OperatorWork, ...]
    device_ns: int
    has_shapes: bool
    graph_ns: int
    path: str


def measure(trace: Trace) -> RankWork | None:
    """The operators of a trace; None without device events."""
    if not len(trace.device):
        return None
    inside, steps = in_steps(trace)
    computes = inside & trace.device.is_work(Work.COMPUTE, Work.FUSED)
    launch = trace.launch
    in_graph = computes & (launch != ABSENT)
    if len(trace.calls):
        in_graph &= trace.called(GRAPH_LAUNCH)[np.maximum(launch, 0)]
    operators = _work_by_operator(trace, np.flatnonzero(computes & ~in_graph))
    return RankWork(
        rank=trace.rank,
        steps=steps,
        device_name=next(iter(trace.devices), ""),
        operators=tuple(sorted(operators, key=lambda work: (-work.device_ns, work.operator, work.shapes))),
        device_ns=int(trace.device.duration_ns[inside].sum()),
        has_shapes=trace.details is not None and bool(trace.details.distinct_inputs),
        graph_ns=int(trace.device.duration_ns[in_graph].sum()),
        path=trace.path,
    )


def _owners(trace: Trace, rows: Int64) -> tuple[Int64, Int64]:
    """For each device event the operator that accounts for it, a row of ``Trace.operators`` or ABSENT; and its FLOPs.

    A kernel belongs to the operator around its launch whose operations are counted, else to the innermost one.
    """
    owner = join(trace.device.external_id[rows], trace.operators.external_id)
    counted = count_operators(trace)
    launch = trace.launch[rows]
    launched = np.flatnonzero(launch != ABSENT)
    calls = launch[launched]
    around = counted.nesting.innermost(trace.calls.start_ns[calls], trace.calls.thread[calls])
    is_counted = around != ABSENT
    owner[launched[is_counted]] = counted.rows[around[is_counted]]
    flops = np.full(len(trace.operators) + 1, ABSENT, np.int64)
    flops[counted.rows] = counted.flops
    return owner, flops


def _work_by_operator(trace: Trace, rows: Int64) -> Iterator[OperatorWork]:
    owner, flops = _owners(trace, rows)
    distinct_inputs = () if trace.details is None else trace.details.distinct_inputs
    places: dict[str, int] = {}  # inputs that differ in numbers or strides alone are in one row
    alike = [places.setdefault(describe(inputs), place) for place, inputs in enumerate(distinct_inputs)]
    nothing = np.full(len(trace.operators), ABSENT, np.int64)
    index = np.append(nothing if trace.details is None else trace.details.inputs, ABSENT)
    first = np.array([*alike, ABSENT], np.int64)[index]
    name = np.append(trace.operators.name.astype(np.int64), ABSENT)
    precisions = [product_precision(text) for text in trace.names]
    key = (name[owner] + 1) * (len(distinct_inputs) + 1) + first[owner] + 1
    order = np.argsort(key, kind="stable")
    begins = np.flatnonzero(np.diff(key[order], prepend=-1))
    for members in np.split(order, begins[1:]) if len(order) else ():  # calls with the same name and inputs
        row, events = int(owner[members[0]]), rows[members]
        durations, kernels = trace.device.duration_ns[events], trace.device.name[events]
        rows_of_calls = np.unique(owner[members])
        calls = len(rows_of_calls) if row != ABSENT else len(events)
        longest = int(kernels[int(durations.argmax())])
        inputs = distinct_inputs[int(first[row])] if first[row] != ABSENT else None
        operator = NO_OPERATOR if row == ABSENT else trace.names[trace.operators.name[row]]
        numbers = zip(*np.unique(index[rows_of_calls], return_counts=True), strict=True) if inputs else ()
        sizes = [(count_bytes(operator, distinct_inputs[place], trace.names[longest]), n) for place, n in numbers]
        size = None
        if inputs is not None and all(each is not None for each, _ in sizes):
            size = sum((each or 0) * int(n) for each, n in sizes)
        counted = None if size is None else 0
        if row != ABSENT and (flops[rows_of_calls] != ABSENT).all():
            counted = int(flops[rows_of_calls].sum())
        yield OperatorWork(
            operator=operator.removeprefix(_ATEN),
            shapes="" if inputs is None else describe(inputs),
            dtype=_dtype(inputs, precisions[longest]),
            calls=calls,
            kernels=len(events),
            device_ns=int(durations.sum()),
            flops=counted,
            bytes=size,
        )


def _dtype(inputs: OperatorInputs | None, of_kernel: str | None) -> str:
    """What an operator computes in: as its kernel's name says, else as its first input's elements."""
    if of_kernel in ("tf32", "fp8", "fp4", "bf16", "fp16", "fp32", "fp64"):
        return of_kernel
    elements = [] if inputs is None else [tensor.element for tensor in inputs.tensors if tensor.element]
    found = element_precision(elements[0]) if elements else UNNAMED
    return "" if found == UNNAMED else found


def describe(inputs: OperatorInputs) -> str:
    """The tensors of some inputs in words, their types where they change.

    >>> from perfscope.tables.operator_details import Tensor
    >>> describe(Inputs((Tensor((2, 3), (), "float"), None, Tensor((3,), (), "float")), ()))
    'fp32 2x3, 3'
    """
    words, before = [], ""
    tensors = inputs.tensors
    for tensor in tensors[:_MOST_TENSORS]:
        precision = element_precision(tensor.element) if tensor.element else ""
        kind = tensor.element.removeprefix("c10::") if precision == UNNAMED else precision
        size = "x".join(map(str, tensor.shape)) or "1"
        words.append(f"{kind} {size}" if kind != before and kind else size)
        before = kind
    more = len(tensors) - _MOST_TENSORS
    return ", ".join(words) + (f" and {more} more" if more > 0 else "")


COMPUTE, MEMORY = "compute", "memory"


class Bound(NamedTuple):
    """What an operator attains: the share is attainable over measured time, absent where not known or doubted."""

    tflops: float | None = None
    tb_s: float | None = None
    bound: str | None = None
    share: float | None = None
    regain_ns: float | None = None
    doubt: str | None = None


class Ceilings(NamedTuple):
    """The rates that a machine can reach: its GPU's, where that is listed, and what was measured on it."""

    gpu: Gpu | None
    measured: Ceiling | None = None

    def tflops(self, dtype: str) -> float | None:
        """The ceiling of operations in a data type."""
        measured = self.measured.tflops(dtype) if self.measured else None
        return measured or (self.gpu.dense_tflops.get(dtype) if self.gpu else None)

    def tb_s(self) -> float | None:
        """The ceiling of memory."""
        return (self.measured.tb_s if self.measured else None) or (self.gpu.memory_tb_s if self.gpu else None)


def find_bound(work: OperatorWork, ceilings: Ceilings) -> Bound:
    """What an operator attains, against what was measured; against the datasheet where it exceeds that."""
    bound = _against(work, ceilings)
    return _against(work, ceilings._replace(measured=None)) if bound.doubt and ceilings.measured else bound


def _against(work: OperatorWork, ceilings: Ceilings) -> Bound:
    seconds = work.device_ns / NS_PER_S
    if not seconds:
        return Bound()
    attained = Bound(
        work.flops / TERA / seconds if work.flops else None, None if work.bytes is None else work.bytes / TERA / seconds
    )
    peak, memory = ceilings.tflops(work.dtype), ceilings.tb_s()
    of_compute = work.flops / (peak * TERA) if work.flops and peak else 0.0
    of_memory = work.bytes / (memory * TERA) if work.bytes and memory else 0.0
    if work.flops is None or (work.flops and not peak) or not (of_compute or of_memory):
        return attained
    bound = COMPUTE if of_compute > of_memory else MEMORY
    share = max(of_compute, of_memory) / seconds
    if share > 1 + TOLERANCE:
        doubt = _ABOVE_PEAK if bound == COMPUTE else _ABOVE_MEMORY
        return attained._replace(bound=bound, doubt=doubt)
    share = min(share, 1.0)
    return attained._replace(bound=bound, share=share, regain_ns=work.device_ns * (1 - share))


_ABOVE_PEAK = "faster than the peak: what it did is not what its inputs say"
_ABOVE_MEMORY = "faster than the memory: its data was in the cache, or it did not touch all of its inputs"
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

    >>> work = OperatorWork("native_layer_norm", "", "", 1, 1, 1, None, None)
    >>> categorize(work)
    'norm'
    """
    return next((name for name, pattern in _CATEGORIES if pattern.search(work.operator)), OTHER)


class OperatorShare(Figures, frozen=True):
    """The calls of an operator with inputs of the same shapes and types; means of a step."""

    operator: Annotated[str, Doc("Its name.")]
    category: Annotated[str, Doc("Its kind: ``matrix product``, ``norm``, ``elementwise`` and so on, or ``other``.")]
    inputs: Annotated[str | None, Doc("Its tensors in words; absent where the trace does not state them.")]
    dtype: Annotated[str | None, Doc("The data type that it computes in; absent where it is not known.")]
    calls: Annotated[float, Doc("How often it is called.")]
    kernels: Annotated[float, Doc("Device events that it launches.")]
    device_us: Annotated[float, Doc("Their time.")]
    flops_per_call: Annotated[float | None, Doc("Operations of a call; absent where they cannot be counted.")]
    bytes_per_call: Annotated[float | None, Doc("What a call reads and writes at least; absent likewise.")]
    tflops: Annotated[float | None, Doc("What it attains; absent likewise.")]
    tb_s: Annotated[float | None, Doc("What it attains; absent likewise.")]
    bound: Annotated[str | None, Doc("``compute`` or ``memory``; absent where no ceiling is known.")]
    share: Annotated[float | None, Doc("Attainable time over measured time; absent where it is not known or doubted.")]
    regain_us: Annotated[float | None, Doc("Measured less attainable time; absent likewise.")]
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


class Roofline(Result, frozen=True):
    """``results.roofline``: how far operators are from what the GPU can do, by the datasheet or what was measured."""

    traced: tuple[RankWork, ...]
    ceiling: Ceiling | None = None

    TABLES = (
        Table(
            "Roofline of operators",
            "operators",
            (
                Column("Operator", "operator"),
                Column("Inputs", "inputs", short_name),
                Column("Calls", "calls", None, 0),
                Column("Total (ms)", "device_us", _ms, 3),
                Column("Share (%)", "of_time"),
                Column("GFLOP/call", lambda row: row.flops_per_call / GIGA if row.flops_per_call else None, None, 2),
                Column("MB/call", "bytes_per_call", lambda size: size / MB, 2),
                Column("TFLOP/s", "tflops"),
                Column("TB/s", "tb_s", None, 3),
                Column("Bound", "bound"),
                Column("Of the attainable (%)", "share", PERCENT),
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
        rank = max(self.traced, key=lambda rank: sum(work.device_ns for work in rank.operators) / max(1, rank.steps))
        shares = self._shares(rank)
        operators, categories = self.TABLES
        note = "Kernels by their operator's kind, without communication, copies by the host and CUDA graphs."
        return (
            operators.section(shares.operators[:MOST_ROWS], self._notes(rank, shares)),
            categories.section(shares.categories, (note,)),
        )

    def _notes(self, rank: RankWork, shares: RankShares) -> Iterator[str]:
        which = f" of rank {rank.rank}" if len(self.traced) > 1 and rank.rank is not None else ""
        yield (
            f"For {describe_mean(rank.steps)}{which}. Bytes are the inputs and outputs, once each: a lower bound. "
            "Regain is the time above the attainable one: no change regains more without less work."
        )
        yield _describe_ceilings(self._ceilings(rank), rank)
        if not rank.has_shapes:
            yield "The trace states no inputs of operators: profile with `--shapes`."
        known = sum(each.device_us for each in shares.operators if each.share is not None)
        total = sum(each.regain_us or 0 for each in shares.operators) / US_PER_MS
        share = percent_of(known, shares.total_us) or 0.0
        yield f"{share:.1f} % of the time has a known share of the attainable; all of it would regain {total:.3f} ms."
        if doubted := [each for each in shares.operators if each.doubt]:
            more = f"; {len(doubted) - 1} more are doubted, in --format json" if doubted[1:] else ""
            yield f"Doubted: {doubted[0].operator} of {doubted[0].inputs or ''}: {doubted[0].doubt}{more}."
        if rank.graph_ns:
            yield f"{percent_of(rank.graph_ns, rank.device_ns):.1f} % of the time is in CUDA graphs, without operators."
        if len(shares.operators) > MOST_ROWS:
            yield f"{len(shares.operators) - MOST_ROWS} more rows are in --format json."


def _by_category(rank: RankWork, steps: int) -> tuple[CategoryTime, ...]:
    totals: defaultdict[str, list[int]] = defaultdict(lambda: [0, 0, 0])
    for work in rank.operators:
        for place, value in enumerate((work.calls, work.kernels, work.device_ns)):
            totals[categorize(work)][place] += value
    ordered = sorted(totals.items(), key=lambda entry: (-entry[1][2], entry[0]))
    return tuple(
        CategoryTime(name, calls / steps, kernels / steps, time / steps / NS_PER_US, percent_of(time, rank.device_ns))
        for name, (calls, kernels, time) in ordered
    )


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
        doubt=bound.doubt,
        of_time=percent_of(work.device_ns, whole_ns),
    )


def analyze(partials: Sequence[RankWork]) -> Roofline:
    """Put the ranks in order; NoDevice where no trace has device events."""
    if not partials:
        raise NoDevice("the traces contain no GPU events")
    return Roofline(in_order(partials, "path"))
