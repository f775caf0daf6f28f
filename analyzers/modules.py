"""The time of every module of the model, forward, backward, recomputed, in the optimizer, and exchanged.

The modules of a rank are a tree. A module's parent is the module whose path is the beginning of its own, else the one
around its first forward. Siblings whose last name is a number fold where all modules inside them have the same names,
calls, kernels and operations: ``blocks.0`` to ``blocks.11``.

A launch inside the mark of a module's forward (``nn.Module: PATH``) belongs to the innermost marked module. A launch of
the backward pass is inside a node of autograd. It belongs to the module of the operator that made the node: it has the
same sequence number, of its thread. A node that accumulates a gradient has no number. It belongs to the module of the
previous node, which computed the gradient. A forward inside a node is recomputation.
"""

from __future__ import annotations

import re
from collections.abc import Hashable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import IntEnum
from typing import Annotated

import numpy as np

from perfscope.analyzers.tflops.counted_calls import count_operators
from perfscope.constants import GIGA, NS_PER_MS, NS_PER_US, TERA
from perfscope.errors import NotApplicable
from perfscope.measures.marked_steps import describe_mean, in_steps
from perfscope.measures.nesting import Nesting
from perfscope.measures.rank_labels import in_order
from perfscope.report import DEFAULT_DEPTH, MOST_ROWS, Cell, Column, Row, Section, in_unit, percent, percent_of
from perfscope.result import Doc, Figures, Result, figure
from perfscope.tables.columns import Bool, Int64
from perfscope.tables.intervals import union
from perfscope.tables.operator_details import OperatorDetails, no_details
from perfscope.tables.trace import ABSENT, GRAPH_LAUNCH, Trace, Work, distinct

MODULE, REGION, NODE = "nn.Module: ", "Torch-Compiled Region: ", "autograd::engine::evaluate_function: "
#: FSDP's marks name the module whose parameters they gather, and whose gradients they reduce.
_SHARDING = re.compile(r"^FSDP::\w+(?: \((?P<module>.*)\)| for (?P<next>\S+))?$")
_BACKWARD_FUNCTION = re.compile(r"Backward\d*$")
_OF_INPUTS = "FSDP::cast_forward_inputs"
#: The module that torch.compile makes of a graph: what it runs backward is no forward.
_GRAPH, _COMPILED_BACKWARD = MODULE + "GraphModule", "CompiledFunctionBackward"


class ModulePhase(IntEnum):
    """What a device event is for. COMMUNICATION includes the copies that prepare and take up what is exchanged."""

    FORWARD = 0
    BACKWARD = 1
    RECOMPUTATION = 2
    OPTIMIZER = 3
    COMMUNICATION = 4


class Owner(IntEnum):
    """What owns a device event that belongs to no module: OUTSIDE are kernels, as of a loss or of clipping."""

    OPTIMIZER = 0
    DATA = 1
    COMMUNICATION = 2
    COPIES = 3
    OUTSIDE = 4
    GRAPH = 5
    NOT_LAUNCHED = 6


_OWNER_MARKS = (
    ("Optimizer.step#", Owner.OPTIMIZER),
    ("Optimizer.zero_grad#", Owner.OPTIMIZER),
    ("enumerate(DataLoader)", Owner.DATA),
)


@dataclass(frozen=True, slots=True, eq=False)
class ModulePlaces:
    """Where moments of threads are in the model; numberless is a node of autograd without a sequence number."""

    module: Int64
    phase: Int64
    is_numberless: Bool


class ModuleMap:
    """The marks of modules, ``PATH::compiled N`` for what torch.compile made of one, and the nodes of autograd."""

    def __init__(self, trace: Trace) -> None:
        self.names: list[str] = []
        self.calls: list[int] = []
        self.around: list[int] = []
        self._numbers: dict[str, int] = {}
        self._trace = trace
        self._find_scopes()
        self._link_nodes()
        self._resolve()

    def _find_scopes(self) -> None:
        trace = self._trace
        kinds = np.array([_kind_of(name) for name in trace.names] or [0], np.int64)
        rows = np.flatnonzero(kinds[trace.annotations.name])
        operators = np.flatnonzero(kinds[trace.operators.name])
        details = trace.details or no_details(len(trace.operators))
        tables = (trace.annotations.take(rows), trace.operators.take(operators))
        self._name = np.concatenate([table.name for table in tables]).astype(np.int64)
        self._start = np.concatenate([table.start_ns for table in tables])
        end = np.concatenate([table.end_ns for table in tables])
        self._thread = np.concatenate([table.thread for table in tables])
        absent = np.full(len(rows), ABSENT, np.int64)
        self._sequence = np.concatenate([absent, details.sequence[operators]])
        self._forward_thread = np.concatenate([absent, details.forward_thread[operators]])
        self._kind = kinds[self._name] if len(self._name) else self._name
        self._nesting = Nesting(self._start, end, self._thread)
        self._number_nodes(details)
        is_function = trace.named(_BACKWARD_FUNCTION)
        is_forward = (details.sequence != ABSENT) & (details.forward_thread <= 0) & (kinds[trace.operators.name] == 0)
        is_forward &= ~is_function[trace.operators.name]
        forward = np.flatnonzero(is_forward)
        self._forward = trace.operators.take(forward)
        self._forward_sequence = details.sequence[forward]

    def _number_nodes(self, details: OperatorDetails) -> None:
        """Take the number of a node that states none, as those of functions in Python, from the function inside it."""
        functions = np.flatnonzero((details.sequence != ABSENT) & (details.forward_thread > 0))
        inside = self._trace.operators.take(functions)
        scope = self._nesting.innermost(inside.start_ns, inside.thread)
        is_new = (scope != ABSENT) & (self._kind[scope] == _NODE_KIND) & (self._sequence[scope] == ABSENT)
        self._sequence[scope[is_new]] = details.sequence[functions[is_new]]
        self._forward_thread[scope[is_new]] = details.forward_thread[functions[is_new]]

    def _link_nodes(self) -> None:
        """For each node the scope of the operator that made it: the last one of its thread with its number.

        An operator that makes several nodes, as one in place on a view does, has the number of the first. A node whose
        number no operator has belongs to the previous operator.
        """
        self._link = np.full(len(self._name), ABSENT, np.int64)
        nodes = np.flatnonzero((self._kind == _NODE_KIND) & (self._sequence != ABSENT))
        if not len(nodes) or not len(self._forward):
            return
        scope = self._nesting.innermost(self._forward.start_ns, self._forward.thread)
        threads = _match_threads(
            self._forward_thread[nodes], self._sequence[nodes], self._forward.thread, self._forward_sequence
        )
        for number, thread in threads.items():
            mine = nodes[self._forward_thread[nodes] == number]
            rows = np.flatnonzero(self._forward.thread == thread)
            order = rows[np.lexsort((self._forward.start_ns[rows], self._forward_sequence[rows]))]
            sequences = self._forward_sequence[order]
            last = np.searchsorted(sequences, self._sequence[mine], side="right") - 1
            is_made = last >= 0
            self._link[mine[is_made]] = scope[order[last[is_made]]]

    def _resolve(self) -> None:
        count = len(self._name)
        module: list[int] = [ABSENT] * (count + 1)
        phase: list[int] = [ModulePhase.FORWARD] * (count + 1)
        node: list[int] = [ABSENT] * (count + 1)  # the innermost one around
        before: dict[int, int] = {}
        names = self._trace.names
        parents, links = self._nesting.parent.tolist(), self._link.tolist()
        kinds, name_of, threads = self._kind.tolist(), self._name.tolist(), self._thread.tolist()
        sequences = self._sequence.tolist()
        outermost_first = np.lexsort((np.argsort(self._nesting.order), self._start))
        for row in outermost_first.tolist():
            parent, name = parents[row], names[name_of[row]]
            kind, is_backward = kinds[row], node[parent] != ABSENT
            node[row] = row if kind == _NODE_KIND else node[parent]
            if kind == _NODE_KIND:
                link = links[row]
                if sequences[row] == ABSENT:
                    module[row] = before.get(threads[row], ABSENT)
                else:
                    module[row] = before[threads[row]] = module[link] if link != ABSENT else ABSENT
                phase[row] = ModulePhase.BACKWARD
                continue
            phase[row] = ModulePhase.RECOMPUTATION if is_backward else ModulePhase.FORWARD
            if kind == _SHARDING_KIND:
                module[row] = self._sharded(name, module[parent])
                phase[row] = ModulePhase.COMMUNICATION
            elif name == _GRAPH and is_backward and _COMPILED_BACKWARD in names[name_of[node[row]]]:
                module[row], phase[row] = module[parent], ModulePhase.BACKWARD
            else:
                module[row] = self._number(self._path(kind, name, module[parent]), module[parent])
                self.calls[module[row]] += not is_backward
        self._module, self._phase = np.array(module, np.int64), np.array(phase, np.int64)
        self._numberless = np.append((self._kind == _NODE_KIND) & (self._sequence == ABSENT), False)
        # Where forward operators run, by thread: inside a node they repeat the forward pass.
        self._repeats = {
            thread: union(self._forward.start_ns[rows], self._forward.end_ns[rows])
            for thread in distinct(self._forward.thread)
            for rows in (self._forward.thread == thread,)
        }

    def _path(self, kind: int, name: str, around: int) -> str:
        if kind == _REGION_KIND:
            outer = "" if around == ABSENT else self.names[around]
            return f"{outer}::compiled {name.removeprefix(REGION)}"
        return name.removeprefix(MODULE)

    def _number(self, path: str, around: int) -> int:
        number = self._numbers.setdefault(path, len(self.names))
        if number == len(self.names):
            self.names.append(path)
            self.calls.append(0)
            self.around.append(around if around != number else ABSENT)
        return number

    def _sharded(self, name: str, around: int) -> int:
        """The module that a mark of FSDP names; the outermost one where it names none."""
        match = _SHARDING.match(name)
        path = (match["module"] or match["next"] or "") if match else ""
        if path:
            return self._number(path, 0 if self.names else ABSENT)
        return around if around != ABSENT else (0 if self.names else ABSENT)

    def find(self, moments_ns: Int64, threads: Int64) -> ModulePlaces:
        """Where moments of threads are."""
        scope = self._nesting.innermost(moments_ns, threads)
        phase = self._phase[scope].copy()
        for thread, repeats in self._repeats.items():
            mine = np.flatnonzero((phase == ModulePhase.BACKWARD) & (threads == thread) & (scope != ABSENT))
            if not len(mine) or not len(repeats):
                continue
            span = np.searchsorted(repeats.start, moments_ns[mine], side="right") - 1
            covers = (span >= 0) & (moments_ns[mine] < repeats.end[np.maximum(span, 0)])
            begins_inside = repeats.start[np.maximum(span, 0)] >= self._start[scope[mine]]
            phase[mine[covers & begins_inside]] = ModulePhase.RECOMPUTATION
        return ModulePlaces(self._module[scope], phase, self._numberless[scope])


_MODULE_KIND, _REGION_KIND, _NODE_KIND, _SHARDING_KIND = 1, 2, 3, 4


def _kind_of(name: str) -> int:
    for prefix, kind in ((MODULE, _MODULE_KIND), (REGION, _REGION_KIND), (NODE, _NODE_KIND)):
        if name.startswith(prefix):
            return kind
    return _SHARDING_KIND if name.startswith("FSDP::") and name != _OF_INPUTS and _SHARDING.match(name) else 0


def _match_threads(of_node: Int64, sequence: Int64, thread: Int64, forward_sequence: Int64) -> dict[int, int]:
    """The thread that each number of a forward thread means: the one that ran most of these sequence numbers."""
    threads: dict[int, int] = {}
    own = {of: np.unique(forward_sequence[thread == of]) for of in distinct(thread)}
    wanted = {number: np.unique(sequence[of_node == number]) for number in distinct(of_node)}
    for number in sorted(wanted, key=lambda number: -len(wanted[number])):
        matches = {
            of: int(np.isin(wanted[number], numbers, assume_unique=True).sum())
            for of, numbers in own.items()
            if of not in threads.values()
        }
        best = max(matches, key=lambda of: (matches[of], len(own[of])), default=ABSENT)
        if best != ABSENT and matches[best]:
            threads[number] = best
    return threads


def find_owners(trace: Trace, modules: ModuleMap) -> tuple[Int64, Int64, Int64]:
    """For each device event its module, its phase in that, and its Owner without one; ABSENT for the other."""
    device, launch = trace.device, trace.launch
    is_launched = launch != ABSENT
    module = np.full(len(device), ABSENT, np.int64)
    phase = np.zeros(len(device), np.int64)
    owner = np.full(len(device), int(Owner.NOT_LAUNCHED), np.int64)
    rows = np.flatnonzero(is_launched)
    if not len(rows):
        return module, phase, owner
    moments, threads = trace.calls.start_ns[launch[rows]], trace.calls.thread[launch[rows]]
    places = modules.find(moments, threads)
    communicates = device.is_work(Work.COMMUNICATION, Work.FUSED)[rows]
    copies = device.is_work(Work.COPY)[rows]
    # DDP reduces a bucket of gradients of several modules where the last of them is accumulated.
    is_of_bucket = communicates & places.is_numberless
    module[rows] = np.where(is_of_bucket, ABSENT, places.module)
    phase[rows] = np.where(communicates, int(ModulePhase.COMMUNICATION), places.phase)
    of_rows = np.where(copies, int(Owner.COPIES), int(Owner.OUTSIDE))
    of_rows = np.where(trace.called(GRAPH_LAUNCH)[launch[rows]], int(Owner.GRAPH), of_rows)
    for prefix, marked in _OWNER_MARKS:
        spans = trace.annotated(prefix)
        marks = Nesting(spans.start_ns, spans.end_ns, spans.thread)
        inside = marks.innermost(moments, threads) != ABSENT
        of_rows = np.where(inside, int(marked), of_rows)
        if marked is Owner.OPTIMIZER:
            # An optimizer that steps inside the backward pass, parameter by parameter.
            phase[rows] = np.where(inside & ~communicates, int(ModulePhase.OPTIMIZER), phase[rows])
    owner[rows] = np.where(communicates, int(Owner.COMMUNICATION), of_rows)
    owner[module != ABSENT] = ABSENT
    return module, phase, owner


@dataclass(frozen=True, slots=True)
class ModuleTimes:
    """One module of one rank, without those inside; ``around`` is the module around its first forward."""

    path: str
    around: str
    calls: int
    device_ns: tuple[int, ...]
    kernels: tuple[int, ...]
    flops: tuple[int, ...] | None


@dataclass(frozen=True, slots=True)
class RankModules:
    """The modules of one trace, and the time and number of the device events of no module, by owner."""

    rank: int | None
    steps: int
    modules: tuple[ModuleTimes, ...]
    owners: dict[Owner, tuple[int, int]]
    has_numbers: bool = True
    path: str = field(default="", compare=False)

    @property
    def modules_ns(self) -> int:
        """Time that belongs to modules."""
        return sum(sum(module.device_ns) for module in self.modules)

    @property
    def total_ns(self) -> int:
        """Time of all device events; those that overlap each count in full."""
        return self.modules_ns + sum(time for time, _ in self.owners.values())

    @property
    def computing_ns(self) -> int:
        """Time of all device events but communication, which lasts as long as a rank waits for others."""
        of_modules = sum(module.device_ns[ModulePhase.COMMUNICATION] for module in self.modules)
        return self.total_ns - of_modules - self.owners.get(Owner.COMMUNICATION, (0, 0))[0]

    @property
    def owned(self) -> float | None:
        """The share of the time that has a module, or an owner other than a launch that is not in the trace."""
        lost = self.owners.get(Owner.NOT_LAUNCHED, (0, 0))[0]
        return 1 - lost / self.total_ns if self.total_ns else None


def measure(trace: Trace) -> RankModules | None:
    """The modules of a trace; None where it marks none, or has no device events."""
    modules = ModuleMap(trace)
    if not modules.names or not len(trace.device):
        return None
    module, phase, owner = find_owners(trace, modules)
    inside, steps = in_steps(trace)
    count, phases = len(modules.names), len(ModulePhase)
    key = module * phases + phase
    of_modules = np.flatnonzero(inside & (module != ABSENT))
    device_ns = _sum(key[of_modules], trace.device.duration_ns[of_modules], count * phases).reshape(count, phases)
    kernels = np.bincount(key[of_modules], minlength=count * phases).reshape(count, phases)
    flops = _flops(trace, modules)
    details = trace.details
    return RankModules(
        rank=trace.rank,
        steps=steps,
        modules=tuple(
            ModuleTimes(
                path=path,
                around="" if modules.around[number] == ABSENT else modules.names[modules.around[number]],
                calls=modules.calls[number],
                device_ns=tuple(device_ns[number].tolist()),
                kernels=tuple(kernels[number].tolist()),
                flops=None if flops is None else tuple(flops[number].tolist()),
            )
            for number, path in enumerate(modules.names)
        ),
        owners=_times_by_owner(trace, owner, inside),
        has_numbers=details is not None and bool((details.sequence != ABSENT).any()),
        path=trace.path,
    )


def _sum(keys: Int64, values: Int64, length: int) -> Int64:
    totals = np.zeros(length, np.int64)
    np.add.at(totals, keys, values)
    return totals


def _times_by_owner(trace: Trace, owner_of: Int64, inside: Bool) -> dict[Owner, tuple[int, int]]:
    times = {}
    for owner in Owner:
        rows = inside & (owner_of == owner)
        if rows.any():
            times[owner] = int(trace.device.duration_ns[rows].sum()), int(rows.sum())
    return times


def _flops(trace: Trace, modules: ModuleMap) -> Int64 | None:
    counted = count_operators(trace)
    if trace.details is None or not trace.details.distinct_inputs:
        return None
    operators = trace.operators.take(counted.rows)
    places = modules.find(operators.start_ns, operators.thread)
    inside = places.module != ABSENT
    if len(trace.steps):
        step = np.searchsorted(trace.steps.start_ns, operators.start_ns, side="right") - 1
        inside &= (step >= 0) & (operators.start_ns < trace.steps.end_ns[np.maximum(step, 0)])
    count, phases = len(modules.names), len(ModulePhase)
    key = (places.module * phases + places.phase)[inside]
    return _sum(key, counted.flops[inside], count * phases).reshape(count, phases)


#: A number at the end of a path.
_STEM = re.compile(r"(?<![^.])\d+$")
_COMPILED = "::"


@dataclass(slots=True)
class ModuleNode:
    """A module with those inside it, or several folded ones; a folded number in the path is ``*``.

    Times, kernels and operations are its own, without the modules inside, by ModulePhase. ``instances_ns`` has the
    total time of each module that is folded here.
    """

    path: str
    calls: int = 0
    device_ns: tuple[int, ...] = (0,) * len(ModulePhase)
    kernels: tuple[int, ...] = (0,) * len(ModulePhase)
    flops: tuple[int, ...] | None = None
    children: list[ModuleNode] = field(default_factory=list)
    instances_ns: tuple[int, ...] = ()

    @property
    def self_ns(self) -> int:
        """Own time, without the modules inside."""
        return sum(self.device_ns)

    @property
    def total_ns(self) -> int:
        """Time with the modules inside."""
        return sum(self.totals_ns())

    def totals_ns(self) -> tuple[int, ...]:
        """Time with the modules inside, by ModulePhase."""
        return _add(self.device_ns, *(child.totals_ns() for child in self.children))

    def total_kernels(self) -> int:
        """Device events with those of the modules inside."""
        return sum(self.kernels) + sum(child.total_kernels() for child in self.children)

    def total_flops(self) -> int | None:
        """Operations with those of the modules inside; None where the trace states no inputs."""
        inside = [child.total_flops() for child in self.children]
        own = [] if self.flops is None else [sum(self.flops)]
        counts = own + [count for count in inside if count is not None]
        return sum(counts) if counts else None

    def walk(self) -> Iterator[ModuleNode]:
        """This node and those inside; the most time first."""
        yield self
        for child in sorted(self.children, key=lambda child: -child.total_ns):
            yield from child.walk()


def _add(*rows: tuple[int, ...]) -> tuple[int, ...]:
    return tuple(map(sum, zip(*rows, strict=True)))


def build_tree(modules: Sequence[ModuleTimes]) -> list[ModuleNode]:
    """The outermost modules, with those inside them; nothing is folded."""
    nodes = {
        module.path: ModuleNode(module.path, module.calls, module.device_ns, module.kernels, module.flops)
        for module in modules
    }
    parents = {module.path: _parent(module, nodes) for module in modules}
    roots = []
    for path, node in nodes.items():
        parent = parents[path]
        if parent is None or _is_circular(parents, path):
            roots.append(node)
        else:
            nodes[parent].children.append(node)
    return roots


def _parent(module: ModuleTimes, nodes: dict[str, ModuleNode]) -> str | None:
    base, _, region = module.path.rpartition(_COMPILED)
    if region and base in nodes:
        return base
    parts = module.path.split(".")
    for length in range(len(parts) - 1, 0, -1):
        prefix = ".".join(parts[:length])
        if prefix in nodes and prefix != module.path:
            return prefix
    around = module.around
    return around if around in nodes and around != module.path else None


def _is_circular(parents: dict[str, str | None], path: str) -> bool:
    """Whether the parents of a module lead into a circle, which marks that overlap can make."""
    passed, step = {path}, parents[path]
    while step is not None and step not in passed:
        passed.add(step)
        step = parents[step]
    return step is not None


def fold(nodes: Sequence[ModuleNode]) -> list[ModuleNode]:
    """The nodes with equal siblings folded, from the leaves up."""
    groups: dict[tuple[str, Hashable], list[ModuleNode]] = {}
    for node in nodes:
        node.children = fold(node.children)
        node.instances_ns = node.instances_ns or (node.total_ns,)
        groups.setdefault((_STEM.sub("*", node.path), _signature(node)), []).append(node)
    folded: list[ModuleNode] = []
    for (stem, _), alike in groups.items():
        folded.extend([_merge(stem, alike)] if len(alike) > 1 and stem.endswith("*") else alike)
    return folded


def _signature(node: ModuleNode) -> Hashable:
    """What equal modules have in common: calls, operations, kernels of a call, and what is inside them by name.

    A library may split a product in one call, and not in the next.
    """
    inside = tuple((name, _signature(child)) for name, child in _sorted(node))
    return node.calls, sum(node.flops or ()), round(sum(node.kernels) / max(1, node.calls)), inside


def _sorted(node: ModuleNode) -> list[tuple[str, ModuleNode]]:
    return sorted(((child.path.removeprefix(node.path), child) for child in node.children), key=lambda item: item[0])


def _merge(path: str, members: Sequence[ModuleNode]) -> ModuleNode:
    inside = zip(*(_sorted(member) for member in members), strict=True)
    children = [_merge(path + group[0][0], [child for _, child in group]) for group in inside]
    counted = [member.flops for member in members if member.flops is not None]
    return ModuleNode(
        path=path,
        calls=sum(member.calls for member in members),
        device_ns=_add(*(member.device_ns for member in members)),
        kernels=_add(*(member.kernels for member in members)),
        flops=_add(*counted) if counted else None,
        children=children,
        instances_ns=tuple(time for member in members for time in member.instances_ns),
    )


_INDENT = "· "
_OWNER_TITLES = {
    Owner.OPTIMIZER: "(optimizer)",
    Owner.DATA: "(data loading)",
    Owner.COMMUNICATION: "(communication of no module)",
    Owner.COPIES: "(copies outside of modules)",
    Owner.OUTSIDE: "(kernels outside of modules)",
    Owner.GRAPH: "(CUDA graphs)",
    Owner.NOT_LAUNCHED: "(launched before the trace)",
}
_COLUMNS = (
    Column("Module"),
    Column("Layers"),
    Column("Total (ms)", 3),
    Column("Share (%)", 1),
    Column("Self (ms)", 3),
    Column("Forward (ms)", 3),
    Column("Backward (ms)", 3),
    Column("Recomputed (ms)", 3),
    Column("Optimizer (ms)", 3),
    Column("Comm. (ms)", 3),
    Column("Kernels", 0),
    Column("GFLOP", 1),
    Column("TFLOP/s", 1),
    Column("Layer min-max (ms)"),
)


class PhaseTimes(Figures, frozen=True):
    """Time of device events by what they are for."""

    forward: Annotated[float, Doc("Forward passes.")]
    backward: Annotated[float, Doc("Backward passes.")]
    recomputation: Annotated[float, Doc("Forward passes again, inside the backward pass.")]
    optimizer: Annotated[float, Doc("Optimizer steps inside the backward pass, parameter by parameter.")]
    communication: Annotated[float, Doc("Collectives, and FSDP's copies of what is exchanged.")]


class ModuleTime(Figures, frozen=True):
    """One module, by itself (self) and with the modules inside it (total); means of a step."""

    path: Annotated[str, Doc("Its path in the model; ``PATH::compiled N`` for what torch.compile made of it.")]
    calls: Annotated[float, Doc("Forward calls.")]
    self_us: Annotated[float, Doc("Time of its device events.")]
    total_us: Annotated[float, Doc("Time of its device events.")]
    self_by_phase_us: Annotated[PhaseTimes, Doc("The same by what they are for.")]
    total_by_phase_us: Annotated[PhaseTimes, Doc("The same by what they are for.")]
    self_kernels: Annotated[float, Doc("Device events.")]
    total_kernels: Annotated[float, Doc("Device events.")]
    self_flops: Annotated[float | None, Doc("Operations; absent where the trace states no inputs of operators.")]
    total_flops: Annotated[float | None, Doc("Operations; absent where the trace states no inputs of operators.")]


class OwnerTime(Figures, frozen=True):
    """Device events of an owner that is no module."""

    device_us: Annotated[float, Doc("Their time.")]
    kernels: Annotated[float, Doc("How many they are.")]


class RankModuleTimes(Figures, frozen=True):
    """The modules of one rank; means of a step, or of the whole trace where it marks none."""

    rank: Annotated[int | None, Doc("The rank.")]
    steps: Annotated[int, Doc("How many steps the means are of; 0 for the whole trace.")]
    total_us: Annotated[float, Doc("Time of all device events.")]
    modules_us: Annotated[float, Doc("The part of it that belongs to modules.")]
    owned: Annotated[float | None, Doc("The share of it that has a module or a named owner.")]
    joins_backward: Annotated[bool, Doc("Whether the trace has the numbers that join backward passes with modules.")]
    owners: Annotated[
        Mapping[str, OwnerTime],
        Doc(
            "What belongs to no module: ``optimizer``, ``data``, ``communication``, ``copies``, ``outside``, "
            "``graph``, ``not_launched``."
        ),
    ]
    modules: Annotated[tuple[ModuleTime, ...], Doc("Every module, each after the one that it is in.")]


class ModuleTree(Result, frozen=True):
    """``results.modules``: what every module costs the device; times are of a mean step, or of the whole trace."""

    traced: tuple[RankModules, ...]
    depth: int = DEFAULT_DEPTH

    def with_depth(self, depth: int) -> ModuleTree:
        """The same with as many levels in its tables."""
        return ModuleTree(self.traced, depth)

    @figure
    def ranks(self) -> tuple[RankModuleTimes, ...]:
        """Each rank."""
        return tuple(map(_rank_times, self.traced))

    def sections(self) -> tuple[Section, ...]:
        """A table for each kind of rank, of the one with the most time."""
        kinds: dict[frozenset[str], list[RankModules]] = {}
        for rank in self.traced:
            kinds.setdefault(frozenset(module.path for module in rank.modules), []).append(rank)
        groups = list(kinds.values())
        sections = [self._section(ranks, is_alone=len(groups) == 1) for ranks in groups[:MOST_ROWS]]
        if len(groups) > MOST_ROWS:
            left_out = len(groups) - MOST_ROWS
            note = f"{left_out} more kinds of ranks, with other modules, are in --format json."
            sections[-1] = replace(sections[-1], notes=(*sections[-1].notes, note))
        return tuple(sections)

    def _section(self, ranks: Sequence[RankModules], *, is_alone: bool) -> Section:
        shown = max(ranks, key=lambda rank: rank.computing_ns / max(1, rank.steps))
        title = "Time by module" if is_alone or shown.rank is None else f"Time by module: rank {shown.rank}"
        return Section(title, _COLUMNS, tuple(self._rows(shown)), tuple(self._notes(shown, ranks)))

    def _rows(self, rank: RankModules) -> Iterator[Row]:
        steps, whole = max(1, rank.steps), rank.total_ns
        for root in sorted(fold(build_tree(rank.modules)), key=lambda node: -node.total_ns):
            for depth, name, node in _walk_shown(root):
                if depth < self.depth:
                    yield _row(node, _INDENT * depth + name, steps, whole)
        for owner, (time, kernels) in sorted(rank.owners.items(), key=lambda item: -item[1][0]):
            cells: tuple[Cell, ...] = (_OWNER_TITLES[owner], None, time / steps / NS_PER_MS, percent_of(time, whole))
            yield (*cells, *(None,) * 6, kernels / steps, None, None, None)

    def _notes(self, rank: RankModules, ranks: Sequence[RankModules]) -> Iterator[str]:
        of_step = f"{describe_mean(rank.steps)}{'' if rank.steps else ', which marks no step'}"
        owned = "" if rank.owned is None else f" {percent(rank.owned):.1f} % of it has a module or a named owner."
        yield (
            f"Time of device events, of {of_step}; events that overlap each count in full.{owned} A module's total "
            "includes the modules inside it."
        )
        if not rank.has_numbers:
            yield "The trace has no numbers that join backward passes: these stand outside of modules."
        if len(ranks) > 1:
            computing = [each.computing_ns / max(1, each.steps) / NS_PER_MS for each in ranks]
            yield (
                f"For rank {rank.rank}, which has the most time beside communication of {len(ranks)} ranks with these "
                f"modules: {min(computing):.3f} to {max(computing):.3f} ms a step. Communication includes waiting."
            )
        deepest = max((depth for root in build_tree(rank.modules) for depth, *_ in _walk_shown(root)), default=0) + 1
        if deepest > self.depth:
            yield f"{self.depth} of {deepest} levels are shown: --depth shows more, and --format json all."


def _walk_shown(node: ModuleNode, depth: int = 0, outside: str = "") -> Iterator[tuple[int, str, ModuleNode]]:
    """The modules that launched something, with their depths and titles; the most time first.

    One that launches nothing by itself and has a single such module inside, as a wrapper around a model, takes no row.
    """
    children = [child for child in node.children if child.total_kernels()]
    if len(children) == 1 and not sum(node.kernels):
        yield from _walk_shown(children[0], depth, outside or node.path)
        return
    is_below = not outside or node.path.startswith(f"{outside}.")
    if node.total_kernels():
        yield depth, node.path if is_below else f"{outside}: {node.path}", node
    for child in sorted(children, key=lambda child: -child.total_ns):
        yield from _walk_shown(child, depth + 1)


def _rank_times(rank: RankModules) -> RankModuleTimes:
    steps = max(1, rank.steps)
    return RankModuleTimes(
        rank=rank.rank,
        steps=rank.steps,
        total_us=rank.total_ns / steps / NS_PER_US,
        modules_us=rank.modules_ns / steps / NS_PER_US,
        owned=rank.owned,
        joins_backward=rank.has_numbers,
        owners={
            owner.name.lower(): OwnerTime(time / steps / NS_PER_US, kernels / steps)
            for owner, (time, kernels) in rank.owners.items()
        },
        modules=tuple(_module_time(node, steps) for root in build_tree(rank.modules) for node in root.walk()),
    )


def _module_time(node: ModuleNode, steps: int) -> ModuleTime:
    flops = node.total_flops()
    return ModuleTime(
        path=node.path,
        calls=node.calls / steps,
        self_us=node.self_ns / steps / NS_PER_US,
        total_us=node.total_ns / steps / NS_PER_US,
        self_by_phase_us=_by_phase(node.device_ns, steps),
        total_by_phase_us=_by_phase(node.totals_ns(), steps),
        self_kernels=sum(node.kernels) / steps,
        total_kernels=node.total_kernels() / steps,
        self_flops=None if node.flops is None else sum(node.flops) / steps,
        total_flops=None if flops is None else flops / steps,
    )


def _by_phase(times_ns: Sequence[int], steps: int) -> PhaseTimes:
    return PhaseTimes(**{phase.name.lower(): times_ns[phase] / steps / NS_PER_US for phase in ModulePhase})


def _row(node: ModuleNode, title: str, steps: int, whole: int) -> Row:
    totals, flops, folded = node.totals_ns(), node.total_flops(), len(node.instances_ns)
    computing = sum(totals) - totals[ModulePhase.COMMUNICATION] - totals[ModulePhase.OPTIMIZER]
    spread = None
    if folded > 1:
        times = [time / steps / NS_PER_MS for time in node.instances_ns]
        spread = f"{min(times):.3f} - {max(times):.3f}"
    return (
        title,
        f"x{folded}" if folded > 1 else None,
        node.total_ns / steps / NS_PER_MS,
        percent_of(node.total_ns, whole),
        node.self_ns / steps / NS_PER_MS,
        *(totals[phase] / steps / NS_PER_MS or None for phase in ModulePhase),
        node.total_kernels() / steps,
        in_unit(flops / steps, GIGA) if flops else None,
        flops / TERA / (computing / (NS_PER_MS * 1000)) if flops and computing else None,
        spread,
    )


def analyze(partials: Sequence[RankModules]) -> ModuleTree:
    """Put the ranks in order; NotApplicable where no trace marks modules."""
    if not partials:
        raise NotApplicable("the traces mark no modules on a GPU: profile with `--modules`")
    return ModuleTree(in_order(partials, "path"))
