"""Who owns each device event of a trace: a module in a phase, or something outside of all modules.

A launch inside the mark of a module's forward (``nn.Module: PATH``) belongs to the innermost marked module. A launch of
the backward pass is inside a node of autograd. The node has the sequence number and the thread of the operator that
made it. The launch belongs to the module of this operator. A node that accumulates a gradient has no number. It belongs
to the module of the previous node, which computed the gradient. A forward inside a node is recomputation. Each thread
counts its own sequence numbers: the forward that a checkpoint repeats runs in the backward thread, with other numbers.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from enum import IntEnum

import numpy as np

from perfscope.analyzers.shared.nesting import Nesting
from perfscope.analyzers.tflops.counted_calls import count_operators
from perfscope.tables.activity import merge_spans
from perfscope.tables.columns import Bool, Int64
from perfscope.tables.operator_details import OperatorDetails, no_details
from perfscope.tables.trace import ABSENT, Trace, Work, distinct

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
    """What owns a device event that belongs to no module.

    OUTSIDE are kernels outside of modules, as of a loss function or the clipping of gradients; COMMUNICATION is as of
    DDP's reductions of gradients; the launch of NOT_LAUNCHED is not in the trace.
    """

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
_GRAPH_LAUNCH = re.compile(r"^(?:cuda|cu|hip)GraphLaunch")


@dataclass(frozen=True, slots=True, eq=False)
class ModulePlaces:
    """Where moments of threads are in the model: the module's index or ABSENT, and the ModulePhase.

    ``is_numberless``: the innermost range is a node of autograd without a sequence number.
    """

    module: Int64
    phase: Int64
    is_numberless: Bool


class ModuleMap:
    """The marks of modules and the nodes of autograd of one trace.

    ``names`` are paths, and ``PATH::compiled N`` for what torch.compile made of one; ``around`` has for each the module
    around its first forward, or ABSENT.
    """

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
        is_function = np.array([bool(_BACKWARD_FUNCTION.search(name)) for name in trace.names] or [False], np.bool_)
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
        self._module, self._phase = np.full(count + 1, ABSENT, np.int64), np.zeros(count + 1, np.int64)
        module: list[int] = [ABSENT] * (count + 1)
        phase: list[int] = [ModulePhase.FORWARD] * (count + 1)
        is_backward = [False] * (count + 1)
        before: dict[int, int] = {}
        names = self._trace.names
        parents, links = self._nesting.parent.tolist(), self._link.tolist()
        kinds, name_of, threads = self._kind.tolist(), self._name.tolist(), self._thread.tolist()
        sequences = self._sequence.tolist()
        outermost_first = np.lexsort((np.argsort(self._nesting.order), self._start))
        for row in outermost_first.tolist():
            parent, name = parents[row], names[name_of[row]]
            is_backward[row] = is_backward[parent]
            kind = kinds[row]
            if kind == _NODE_KIND:
                link = links[row]
                if sequences[row] == ABSENT:
                    module[row] = before.get(threads[row], ABSENT)
                else:
                    module[row] = before[threads[row]] = module[link] if link != ABSENT else ABSENT
                phase[row], is_backward[row] = ModulePhase.BACKWARD, True
                continue
            phase[row] = ModulePhase.RECOMPUTATION if is_backward[row] else ModulePhase.FORWARD
            if kind == _SHARDING_KIND:
                module[row] = self._sharded(name, module[parent])
                phase[row] = ModulePhase.COMMUNICATION
            elif name == _GRAPH and is_backward[row] and self._is_compiled_backward(parent):
                module[row], phase[row] = module[parent], ModulePhase.BACKWARD
            else:
                module[row] = self._number(self._path(kind, name, module[parent]), module[parent])
                self.calls[module[row]] += not is_backward[row]
        self._module[:], self._phase[:] = module, phase
        self._numberless = np.append((self._kind == _NODE_KIND) & (self._sequence == ABSENT), False)
        # Where forward operators run, by thread: inside a node they repeat the forward pass.
        self._repeats = {
            thread: merge_spans(self._forward.start_ns[rows], self._forward.end_ns[rows])
            for thread in distinct(self._forward.thread)
            for rows in (self._forward.thread == thread,)
        }

    def _is_compiled_backward(self, scope: int) -> bool:
        while scope != ABSENT:
            if self._kind[scope] == _NODE_KIND:
                return _COMPILED_BACKWARD in self._trace.names[self._name[scope]]
            scope = int(self._nesting.parent[scope])
        return False

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
        for thread, (starts, ends) in self._repeats.items():
            mine = np.flatnonzero((phase == ModulePhase.BACKWARD) & (threads == thread) & (scope != ABSENT))
            if not len(mine) or not len(starts):
                continue
            span = np.searchsorted(starts, moments_ns[mine], side="right") - 1
            covers = (span >= 0) & (moments_ns[mine] < ends[np.maximum(span, 0)])
            begins_inside = starts[np.maximum(span, 0)] >= self._start[scope[mine]]
            phase[mine[covers & begins_inside]] = ModulePhase.RECOMPUTATION
        return ModulePlaces(self._module[scope], phase, self._numberless[scope])


_MODULE_KIND, _REGION_KIND, _NODE_KIND, _SHARDING_KIND = 1, 2, 3, 4


def _kind_of(name: str) -> int:
    for prefix, kind in ((MODULE, _MODULE_KIND), (REGION, _REGION_KIND), (NODE, _NODE_KIND)):
        if name.startswith(prefix):
            return kind
    return _SHARDING_KIND if name.startswith("FSDP::") and name != _OF_INPUTS and _SHARDING.match(name) else 0


def _match_threads(of_node: Int64, sequence: Int64, thread: Int64, forward_sequence: Int64) -> dict[int, int]:
    """The thread that each number of a forward thread means: the one that ran most of these sequence numbers.

    No two numbers mean one thread; that of the most nodes chooses first.
    """
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


@dataclass(frozen=True, slots=True, eq=False)
class Owners:
    """The owner of each device event: a module and a phase, or an Owner; ABSENT for the other one."""

    modules: ModuleMap
    module: Int64
    phase: Int64
    owner: Int64


def find_owners(trace: Trace, modules: ModuleMap) -> Owners:
    """Who owns each device event of a trace."""
    device, launch = trace.device, trace.launch
    is_launched = launch != ABSENT
    module = np.full(len(device), ABSENT, np.int64)
    phase = np.zeros(len(device), np.int64)
    owner = np.full(len(device), int(Owner.NOT_LAUNCHED), np.int64)
    rows = np.flatnonzero(is_launched)
    if not len(rows):
        return Owners(modules, module, phase, owner)
    moments, threads = trace.calls.start_ns[launch[rows]], trace.calls.thread[launch[rows]]
    places = modules.find(moments, threads)
    communicates = device.is_work(Work.COMMUNICATION, Work.FUSED)[rows]
    copies = device.is_work(Work.COPY)[rows]
    # DDP reduces a bucket of gradients of several modules where the last of them is accumulated.
    is_of_bucket = communicates & places.is_numberless
    module[rows] = np.where(is_of_bucket, ABSENT, places.module)
    phase[rows] = np.where(communicates, int(ModulePhase.COMMUNICATION), places.phase)
    is_graph = np.array([bool(_GRAPH_LAUNCH.match(name)) for name in trace.names], np.bool_)
    of_rows = np.where(copies, int(Owner.COPIES), int(Owner.OUTSIDE))
    of_rows = np.where(is_graph[trace.calls.name[launch[rows]]], int(Owner.GRAPH), of_rows)
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
    return Owners(modules, module, phase, owner)


@dataclass(frozen=True, slots=True)
class ModuleTimes:
    """One module of one rank, without the modules inside it; times, kernels and operations are by ModulePhase.

    ``around`` is the path of the module around its first forward; calls are without recomputation.
    """

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
    owners = find_owners(trace, modules)
    inside = trace.step != ABSENT if len(trace.steps) else np.ones(len(trace.device), np.bool_)
    count, phases = len(modules.names), len(ModulePhase)
    key = owners.module * phases + owners.phase
    of_modules = np.flatnonzero(inside & (owners.module != ABSENT))
    device_ns = _sum(key[of_modules], trace.device.duration_ns[of_modules], count * phases).reshape(count, phases)
    kernels = np.bincount(key[of_modules], minlength=count * phases).reshape(count, phases)
    flops = _flops(trace, modules)
    details = trace.details
    return RankModules(
        rank=trace.rank,
        steps=len(distinct(trace.step[inside])) if len(trace.steps) else 0,
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
        owners=_times_by_owner(trace, owners, inside),
        has_numbers=details is not None and bool((details.sequence != ABSENT).any()),
        path=trace.path,
    )


def _sum(keys: Int64, values: Int64, length: int) -> Int64:
    totals = np.zeros(length, np.int64)
    np.add.at(totals, keys, values)
    return totals


def _times_by_owner(trace: Trace, owners: Owners, inside: Bool) -> dict[Owner, tuple[int, int]]:
    times = {}
    for owner in Owner:
        rows = inside & (owners.owner == owner)
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
