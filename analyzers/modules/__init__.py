"""The time of every module of the model, forward, backward, recomputed, in the optimizer, and exchanged.

The modules of a rank are a tree, in which equal siblings with numbers fold: ``blocks.0`` to ``blocks.11``. A module's
parent is the module whose path is the beginning of its own. Without one, as for the first module below the root, the
parent is the module around its first forward. Siblings whose last name is a number fold where all modules inside them
have the same names, calls, kernels and operations.
"""

from __future__ import annotations

import re
from collections.abc import Hashable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Annotated

from perfscope.analyzers.modules.attribution import ModulePhase, ModuleTimes, Owner, RankModules
from perfscope.analyzers.modules.attribution import measure as measure
from perfscope.constants import GIGA, NS_PER_MS, NS_PER_US, TERA
from perfscope.errors import NotApplicable
from perfscope.report import Cell, Column, Row, Section, in_unit, percent, percent_of
from perfscope.result import Doc, Figures, Result, figure

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

    def walk(self, depth: int = 0) -> Iterator[tuple[int, ModuleNode]]:
        """This node and those inside, with their depths; the most time first."""
        yield depth, self
        for child in sorted(self.children, key=lambda child: -child.total_ns):
            yield from child.walk(depth + 1)


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
        if parent is None or _leads_to(parents, parent, path):
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


def _leads_to(parents: dict[str, str | None], start: str, goal: str) -> bool:
    """Whether the chain of parents from one module reaches another: a circle, which marks that overlap can make."""
    step: str | None = start
    for _ in range(len(parents)):
        if step is None:
            return False
        if step == goal:
            return True
        step = parents[step]
    return True


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


_DEFAULT_DEPTH = 3
_MOST_TABLES = 4
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
    communication: Annotated[
        float,
        Doc("Collectives, and in FSDP the copies that prepare and take up what is exchanged."),
    ]


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
    depth: int = _DEFAULT_DEPTH

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
        sections = [self._section(ranks, is_alone=len(groups) == 1) for ranks in groups[:_MOST_TABLES]]
        if len(groups) > _MOST_TABLES:
            left_out = len(groups) - _MOST_TABLES
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
        of_step = f"a mean of {rank.steps} steps" if rank.steps > 1 else "one step"
        of_step = of_step if rank.steps else "the whole trace, which marks no step"
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
                f"Of rank {rank.rank}, which has the most time beside communication of {len(ranks)} ranks with these "
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
    by_path = {module.path: module for module in rank.modules}
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
        modules=tuple(
            _module_time(node, by_path[node.path], steps)
            for root in build_tree(rank.modules)
            for _, node in root.walk()
        ),
    )


def _module_time(node: ModuleNode, module: ModuleTimes, steps: int) -> ModuleTime:
    flops = node.total_flops()
    return ModuleTime(
        path=node.path,
        calls=module.calls / steps,
        self_us=node.self_ns / steps / NS_PER_US,
        total_us=node.total_ns / steps / NS_PER_US,
        self_by_phase_us=_by_phase(module.device_ns, steps),
        total_by_phase_us=_by_phase(node.totals_ns(), steps),
        self_kernels=sum(module.kernels) / steps,
        total_kernels=node.total_kernels() / steps,
        self_flops=None if module.flops is None else sum(module.flops) / steps,
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
        *(_shown(totals[phase] / steps / NS_PER_MS) for phase in ModulePhase),
        node.total_kernels() / steps,
        in_unit(flops / steps, GIGA) if flops else None,
        flops / TERA / (computing / (NS_PER_MS * 1000)) if flops and computing else None,
        spread,
    )


def _shown(time_ms: float) -> float | None:
    return time_ms or None


_NO_MARKS = "the traces mark no modules on a GPU: profile with `--modules`"


def analyze(partials: Sequence[RankModules]) -> ModuleTree:
    """Put the ranks in order.

    Raises:
        NotApplicable: No trace marks modules.
    """
    if not partials:
        raise NotApplicable(_NO_MARKS)
    return ModuleTree(tuple(sorted(partials, key=lambda rank: (rank.rank is None, rank.rank or 0, rank.path))))
