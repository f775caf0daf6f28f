"""The modules of a rank as a tree, in which equal siblings with numbers fold: ``blocks.0`` to ``blocks.11``.

A module's parent is the module whose path is the beginning of its own. Without one, as for the first module below the
root, the parent is the module around its first forward. Siblings whose last name is a number fold where all modules
inside them have the same names, calls, kernels and operations.
"""

from __future__ import annotations

import re
from collections.abc import Hashable, Iterator, Sequence
from dataclasses import dataclass, field

from perfscope.analyzers.modules.attribution import Phase
from perfscope.analyzers.modules.measurement import ModuleTimes

#: A layer without modules inside folds only among as many siblings: in a sequence of three, the first and the last one
#: may be equal by chance.
_FEWEST_LEAVES = 3
#: A number at the end of a path.
_STEM = re.compile(r"(?<![^.])\d+$")
_COMPILED = "::"


@dataclass(slots=True)
class ModuleNode:
    """A module with those inside it, or several folded ones.

    Attributes:
        path: Its path; a folded number is ``*``.
        calls: Forward calls of all that are folded.
        device_ns: Own time by Phase, of all that are folded, without the modules inside.
        kernels: Own device events by Phase, likewise.
        flops: Own operations by Phase, likewise; absent where the trace states no inputs.
        children: The modules inside.
        instances_ns: The total time of each module that is folded here.
    """

    path: str
    calls: int = 0
    device_ns: tuple[int, ...] = (0,) * len(Phase)
    kernels: tuple[int, ...] = (0,) * len(Phase)
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
        """Time with the modules inside, by Phase."""
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
        fewest = 2 if alike[0].children else _FEWEST_LEAVES
        folded.extend([_merge(stem, alike)] if len(alike) >= fewest and stem.endswith("*") else alike)
    return folded


def _signature(node: ModuleNode) -> Hashable:
    """What equal modules have in common: calls, operations, kernels of a call, and what is inside them by name.

    A library may split a product in one call, and not in the next.
    """
    inside = tuple((_relative(child, node), _signature(child)) for child in _sorted(node))
    return node.calls, sum(node.flops or ()), round(sum(node.kernels) / max(1, node.calls)), inside


def _sorted(node: ModuleNode) -> list[ModuleNode]:
    return sorted(node.children, key=lambda child: child.path)


def _relative(child: ModuleNode, parent: ModuleNode) -> str:
    return child.path.removeprefix(parent.path)


def _merge(path: str, members: Sequence[ModuleNode]) -> ModuleNode:
    """One node for equal ones; what is inside them is merged name by name."""
    inside = zip(*(_sorted(member) for member in members), strict=True)
    children = [_merge(path + _relative(group[0], members[0]), group) for group in inside]
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
