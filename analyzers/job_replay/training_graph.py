"""What waits for what in a step of a pipeline, from the operations of one worker of each stage.

The model is that of Lin et al. (OSDI 2025, section 3): passes run in their order; a pass waits for what it receives,
and what is sent waits for its pass; gradients and parameters are exchanged with the other pipelines; the optimizer is
last.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from perfscope.analyzers.job_replay.graph import Graph, Group, order_groups
from perfscope.errors import MissingInput

FORWARD, BACKWARD = "forward-compute", "backward-compute"
PARAMETERS, GRADIENTS = "params-all-gather", "grads-reduce-scatter"
SEPARATE_GRADIENTS = "separate-grads-all-reduce"
LAYER_NORMS, EMBEDDINGS = "layernorm-grads-all-reduce", "embedding-grads-all-reduce"
COLLECTION, CLIPPING, OPTIMIZER = "gc", "optimizer-clip-main-grad", "optimizer"
#: Where each transfer goes to or comes from: the difference of stages, and of the model's chunks.
TRANSFERS = {"forward-send": 1, "forward-recv": -1, "backward-send": -1, "backward-recv": 1}
#: Operations whose ideal is the median of their peers.
COMMUNICATION = (*TRANSFERS, PARAMETERS, GRADIENTS, SEPARATE_GRADIENTS, LAYER_NORMS, EMBEDDINGS, CLIPPING)
KINDS = (FORWARD, BACKWARD, *COMMUNICATION, COLLECTION, OPTIMIZER)
#: Exchanged with the same stage of the other pipelines.
_JOINED = (PARAMETERS, GRADIENTS, SEPARATE_GRADIENTS)
#: Clocks of what computes and what transfers differ by this much.
_TOLERANCE_NS = 50_000
#: The first transfers of gradients are posted behind the pass so many before the first backward pass.
_PASSES_AHEAD = 2


@dataclass(frozen=True, slots=True)
class Node:
    """An operation of one stage, with the times of one step of one pipeline that say in which order they ran."""

    number: int
    kind: str
    stage: int
    sequence: int
    chunk: int
    global_chunk: int
    start_ns: int
    end_ns: int

    @property
    def rank_in_time(self) -> tuple[int, int, str]:
        """The key by which operations of a worker are in the order in which they ran."""
        return self.start_ns, self.sequence, self.kind


@dataclass(slots=True)
class _Building:
    """A graph in the making.

    Attributes:
        stages: Stages of the pipeline.
        chunks: Chunks of the whole model.
        waits: For each operation those that it waits for.
        transfers: By kind and stage, the transfers that go to or come from another stage, in their order.
    """

    stages: int
    chunks: int
    waits: list[list[int]]
    transfers: dict[tuple[str, int], list[int]] = field(default_factory=lambda: defaultdict(list))

    def add_chain(self, nodes: Iterable[Node], first: Sequence[Node] = ()) -> None:
        """Let each operation wait for the one before it, and the first of them for ``first``."""
        before = list(first)
        for node in nodes:
            self.add_waits(node, before)
            before = [node]

    def add_waits(self, node: Node, before: Iterable[Node]) -> None:
        """Let an operation wait for others."""
        self.waits[node.number].extend(earlier.number for earlier in before)


def build_training_graph(nodes: Sequence[Node]) -> Graph:
    """Find what waits for what among the operations of one step of one pipeline.

    Raises:
        MissingInput: Sends and receives do not fit each other.
        PerfscopeError: Operations wait for each other.
    """
    passes = [node for node in nodes if node.kind in (FORWARD, BACKWARD)]
    stages = 1 + max(node.stage for node in nodes)
    chunks = stages * (1 + max(node.chunk for node in passes))
    building = _Building(stages, chunks, [[] for _ in nodes])
    is_overlapping = any(node.kind == SEPARATE_GRADIENTS for node in nodes)
    for stage in range(stages):
        by_kind: dict[str, list[Node]] = defaultdict(list)
        for node in sorted((node for node in nodes if node.stage == stage), key=lambda node: node.rank_in_time):
            by_kind[node.kind].append(node)
        order = sorted([*by_kind[FORWARD], *by_kind[BACKWARD]], key=lambda node: node.rank_in_time)
        building.add_chain(order)
        for kind in TRANSFERS:
            building.add_chain(by_kind[kind])
            _join_with_passes(building, by_kind, kind)
        _start_backward_transfers(building, by_kind, order)
        _exchange_parameters(building, by_kind)
        _end_step(building, by_kind, order, is_overlapping=is_overlapping)
    return order_groups(building.waits, [*_pair_transfers(building), *_collectives(nodes, stages)])


def _join_with_passes(building: _Building, by_kind: dict[str, list[Node]], kind: str) -> None:
    """Let passes wait for what they receive, and sends for their passes.

    A profiler may record transfers before the first pass or after the last one that were never made; they stand alone.
    """
    direction, way = kind.split("-")
    passes = sorted(by_kind[f"{direction}-compute"], key=lambda node: node.sequence)
    is_send = way == "send"
    first_end = min((node.end_ns for node in passes), default=0) - _TOLERANCE_NS
    last_start = max((node.start_ns for node in passes), default=0) + _TOLERANCE_NS
    real = [node for node in by_kind[kind] if (node.end_ns >= first_end if is_send else node.start_ns <= last_start)]
    missing = len(passes) - len(real)
    if real and missing not in (0, 1):
        raise MissingInput(f"stage {real[0].stage} has {len(real)} {kind} for {len(passes)} passes")
    skipped = missing if real and not is_send else 0
    for transfer, index in zip(real, range(skipped, len(passes)), strict=False):
        own = passes[index]
        if is_send:
            building.add_waits(transfer, [own])
        else:
            building.add_waits(own, [transfer])
            building.add_waits(transfer, passes[index - 1 : index] if index else [])
        if 0 <= own.global_chunk + TRANSFERS[kind] < building.chunks:
            building.transfers[kind, own.stage].append(transfer.number)


def _start_backward_transfers(building: _Building, by_kind: dict[str, list[Node]], order: Sequence[Node]) -> None:
    """The first transfers of gradients wait for the second-last pass before the first backward pass."""
    first = next((index for index, node in enumerate(order) if node.kind == BACKWARD), 0)
    if first < _PASSES_AHEAD:
        return
    for kind in ("backward-recv", "backward-send"):
        for node in by_kind[kind]:
            if node.sequence == 0:
                building.add_waits(node, [order[first - _PASSES_AHEAD]])


def _exchange_parameters(building: _Building, by_kind: dict[str, list[Node]]) -> None:
    """Gathers and reductions share a stream; the first forward pass of a chunk waits for the chunk's parameters."""
    exchanges = sorted([*by_kind[PARAMETERS], *by_kind[GRADIENTS]], key=lambda node: node.rank_in_time)
    building.add_chain(exchanges)
    last_gathers = {node.chunk: node for node in sorted(by_kind[PARAMETERS], key=lambda node: node.sequence)}
    for chunk, gather in last_gathers.items():
        forwards = [node for node in by_kind[FORWARD] if node.chunk == chunk]
        if forwards:
            building.add_waits(min(forwards, key=lambda node: node.start_ns), [gather])


def _end_step(
    building: _Building, by_kind: dict[str, list[Node]], order: Sequence[Node], *, is_overlapping: bool
) -> None:
    """What follows the last pass: reductions of gradients, clipping, the optimizer."""
    last_pass = max(order, key=lambda node: node.end_ns)
    gradients = sorted(by_kind[GRADIENTS], key=lambda node: node.sequence)
    building.add_chain(by_kind[COLLECTION], [last_pass])
    first = [by_kind[COLLECTION][-1] if by_kind[COLLECTION] else last_pass]
    if is_overlapping:
        for chunk in dict.fromkeys(node.chunk for node in gradients):
            reduction = next(node for node in gradients if node.chunk == chunk)
            backwards = [node for node in by_kind[BACKWARD] if node.chunk == chunk]
            if backwards:
                building.add_waits(reduction, [max(backwards, key=lambda node: node.end_ns)])
        first += gradients[-1:]
    middle = by_kind[SEPARATE_GRADIENTS] if is_overlapping else gradients
    tail = [*by_kind[LAYER_NORMS], *by_kind[EMBEDDINGS], *middle, *by_kind[CLIPPING], *by_kind[OPTIMIZER]]
    building.add_chain(tail, first)


def _pair_transfers(building: _Building) -> Iterable[Group]:
    """The n-th send of a stage and the n-th receive of its neighbour are one transfer."""
    for direction in ("forward", "backward"):
        for stage in range(building.stages):
            peer = (stage + TRANSFERS[f"{direction}-send"]) % building.stages
            sends = building.transfers[f"{direction}-send", stage]
            receives = building.transfers[f"{direction}-recv", peer]
            if len(sends) != len(receives):
                received = f"stage {peer} {len(receives)} {direction}-recv"
                raise MissingInput(f"stage {stage} has {len(sends)} {direction}-send, and {received}")
            yield from (Group(pair) for pair in zip(sends, receives, strict=True))


def _collectives(nodes: Sequence[Node], stages: int) -> Iterable[Group]:
    """What several stages, or one stage of all pipelines, do together."""
    members: dict[tuple[str, int], list[int]] = defaultdict(list)
    for node in nodes:
        if node.kind in _JOINED:
            yield Group((node.number,), is_joined=True)
        elif node.kind == CLIPPING or (node.kind == EMBEDDINGS and node.stage in (0, stages - 1)):
            members[node.kind, node.sequence].append(node.number)
    for (kind, _), numbers in members.items():
        yield Group(tuple(numbers), is_joined=kind == CLIPPING)
