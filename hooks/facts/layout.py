"""This rank's position among data-, pipeline-, tensor-, context- and expert-parallel groups.

The layout that a framework states completely comes first, then a mesh whose named dimensions span all ranks. Else each
wrapper reports the axis that it works on, and an unused axis has size 1 where the used ones span all ranks. Experts
stand on a mesh of their own over the same ranks: their axes are stated besides, and multiply nothing.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

from perfscope.wire.axes import FACTORS, MESH_AXES

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from typing import TypeAlias

    #: ``coordinates`` and ``sizes``, each by axis.
    LayoutDocument: TypeAlias = dict[str, object]
    #: By axis, the ranks that differ from this one on that axis alone, with it, in their order.
    Lines: TypeAlias = dict[str, tuple[int, ...]]

_ALWAYS = ("dp", "pp", "tp")
_OF_EXPERTS = ("ep", "etp")

#: Styles of tensor parallelism; those of experts and of sequences are the framework's own.
_STYLES = "torch.distributed.tensor.parallel."


class RankLayout:
    """The position of one of ``world_size`` ranks; ``position`` is both numbers."""

    def __init__(self, rank: int, world_size: int) -> None:
        self.position = rank, world_size
        self._rank, self._world_size = self.position
        self._framework: tuple[dict[str, int], dict[str, int]] | None = None
        self._spanning: Lines = {}
        self._lines: Lines = {}
        self._experts: Lines = {}

    def set_framework_layout(self, coordinates: dict[str, int], sizes: dict[str, int]) -> None:
        """A framework states all of it: nothing else counts from now on."""
        self._framework = coordinates, sizes

    def set_axis(self, axis: str, ranks: Sequence[int]) -> None:
        """A wrapper works on one axis, over these ranks; of several models the one with the most ranks counts."""
        lines = self._lines if axis in FACTORS else self._experts
        if self._rank in ranks and len(ranks) >= len(lines.get(axis, ())):
            lines[axis] = tuple(ranks)

    def set_mesh(self, mesh: Any) -> None:
        """A mesh is used; it is the layout where its dimensions have names that are known and span all ranks.

        Of several the one with the fewest data-parallel ranks counts: FSDP's dimension has context-parallel ranks
        inside it, and those of experts have tensor-parallel ones, too.
        """
        lines = _find_lines(mesh, MESH_AXES)
        experts = {axis: line for axis, line in lines.items() if axis not in FACTORS}
        for axis in _OF_EXPERTS:
            if len(experts.get(axis, ())) > 1:
                self.set_axis(axis, experts[axis])
        if not lines or "" in lines or mesh.size() != self._world_size or len(experts.get("etp", ())) > 1:
            return
        if experts:
            lines = _find_lines(mesh, {**MESH_AXES, "edp": "dp", "efsdp": "dp", "ep": "dp"})
        if not self._spanning or _replicas(lines) <= _replicas(self._spanning):
            self._spanning = lines

    def lines(self) -> Lines:
        """The used axes, as far as their ranks are known; a framework names its groups itself."""
        if self._framework is None:
            return {axis: line for axis, line in (self._find() | self._experts).items() if len(line) > 1}
        used = [axis for axis in FACTORS if self._framework[1].get(axis, 1) > 1]
        is_alone = len(used) == 1 and self._framework[1][used[0]] == self._world_size
        return {used[0]: tuple(range(self._world_size))} if is_alone else {}

    def document(self) -> LayoutDocument | None:
        """The layout as it is written to the run; None where nothing is known."""
        if self._framework is not None:
            coordinates, sizes = self._framework
        else:
            lines = self._find() | self._experts
            coordinates = {axis: line.index(self._rank) for axis, line in lines.items()}
            sizes = {axis: len(line) for axis, line in lines.items()}
        if not sizes:
            return None
        return {"coordinates": coordinates, "sizes": sizes}

    def _find(self) -> Lines:
        """The ranks of each axis that multiplies; none where what wrappers report is contradictory."""
        lines = self._spanning or self._lines
        covered = math.prod(len(line) for line in lines.values())
        if not lines or covered > self._world_size:
            return {}
        unused = dict.fromkeys(_ALWAYS, (self._rank,)) if covered == self._world_size else {}
        return {**unused, **{axis: line for axis, line in lines.items() if len(line) > 1 or axis in _ALWAYS}}


def _replicas(lines: Lines) -> int:
    return len(lines["dp"]) if "dp" in lines else 1


def _find_lines(mesh: Any, axes_by_name: Mapping[str, str]) -> Lines:
    """The ranks of each axis of a mesh, ``""`` for names that are unknown; several dimensions may be one axis."""
    names, coordinate = mesh.mesh_dim_names, mesh.get_coordinate()
    if not names or coordinate is None:
        return {}
    axes = [axes_by_name.get(name, "") for name in names]
    ranks = mesh.mesh
    return {
        axis: tuple(
            ranks[tuple(slice(None) if along == axis else at for along, at in zip(axes, coordinate, strict=True))]
            .flatten()
            .tolist()
        )
        for axis in dict.fromkeys(axes)
    }


def splits_tensors(mesh: Any, plan: Any) -> bool:
    """Whether a plan for a mesh of one dimension is tensor parallelism, by the mesh's name or else by its styles."""
    axis = MESH_AXES.get(mesh.mesh_dim_names[0]) if mesh.mesh_dim_names else None
    if axis is not None:
        return axis == "tp"
    styles = list(plan.values()) if isinstance(plan, dict) else [plan]
    return all(type(style).__module__.startswith(_STYLES) for style in styles)
