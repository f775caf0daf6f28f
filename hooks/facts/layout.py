"""This rank's position among data-, tensor-, pipeline- and context-parallel groups.

The layout that a framework states completely comes first, then a mesh whose named dimensions span all ranks. Else each
wrapper reports the axis that it works on, and an unused axis has size 1 where the used ones span all ranks.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from typing import TypeAlias

    #: ``coordinates`` and ``sizes``, each by axis; ``groups`` where the training thread waited for their work.
    LayoutDocument: TypeAlias = dict[str, object]

#: The axis of each usual name of a mesh dimension.
_NAMES = {
    "dp": "dp",
    "dp_replicate": "dp",
    "dp_shard": "dp",
    "ddp": "dp",
    "data": "dp",
    "data_parallel": "dp",
    "fsdp": "dp",
    "replicate": "dp",
    "shard": "dp",
    "hsdp": "dp",
    "tp": "tp",
    "tensor": "tp",
    "tensor_parallel": "tp",
    "mp": "tp",
    "pp": "pp",
    "pipe": "pp",
    "pipeline": "pp",
    "pipeline_parallel": "pp",
    "cp": "cp",
    "context": "cp",
    "sp": "cp",
    "ep": "ep",
    "expert": "ep",
}
_ALWAYS = ("dp", "pp", "tp")


class Layout:
    """One rank's position."""

    def __init__(self) -> None:
        self._framework: LayoutDocument | None = None
        self._spanning: dict[str, tuple[int, int]] = {}
        self._axes: dict[str, tuple[int, int]] = {}
        self._groups: tuple[Mapping[str, object], ...] = ()

    def set_groups(self, groups: Sequence[Mapping[str, object]]) -> None:
        """Process groups: the ``ranks`` and the ``description`` of each."""
        self._groups = tuple(groups)

    def set_framework_layout(self, coordinates: dict[str, int], sizes: dict[str, int]) -> None:
        """A framework states all of it: nothing else counts from now on."""
        self._framework = {"coordinates": coordinates, "sizes": sizes}

    def set_axis(self, axis: str, index: int, size: int) -> None:
        """A wrapper works on one axis: this rank's index among how many."""
        self._axes[axis] = (index, size)

    def set_mesh(self, mesh: Any, world_size: int) -> None:
        """A mesh was made; it is the layout where its dimensions have names that are known and span all ranks."""
        axes = {} if self._framework is not None else mesh_axes(mesh)
        if axes and math.prod(size for _, size in axes.values()) == world_size:
            self._spanning = axes

    def document(self, world_size: int) -> LayoutDocument | None:
        """The layout as it is written to the run; None where nothing is known."""
        axes = self._find_axes(world_size)
        if axes is None and not self._groups:
            return None
        return {
            **(axes or {"coordinates": {}, "sizes": {}}),
            **({"groups": [dict(group) for group in self._groups]} if self._groups else {}),
        }

    def _find_axes(self, world_size: int) -> LayoutDocument | None:
        if self._framework is not None:
            return self._framework
        axes = self._spanning or self._axes
        if not axes:
            return None
        if math.prod(size for _, size in axes.values()) == world_size:
            axes = {**dict.fromkeys(_ALWAYS, (0, 1)), **axes}
        return {
            "coordinates": {axis: index for axis, (index, _) in axes.items()},
            "sizes": {axis: size for axis, (_, size) in axes.items()},
        }


def mesh_axes(mesh: Any) -> dict[str, tuple[int, int]]:
    """The axes of a mesh whose dimensions all have known names; several names of one axis are one axis."""
    names = getattr(mesh, "mesh_dim_names", None)
    coordinate = mesh.get_coordinate()
    if not names or coordinate is None or any(name not in _NAMES for name in names):
        return {}
    axes: dict[str, tuple[int, int]] = {}
    for dimension, name in enumerate(names):
        index, size = axes.get(_NAMES[name], (0, 1))
        length = mesh.size(dimension)
        axes[_NAMES[name]] = (index * length + int(coordinate[dimension]), size * length)
    return axes
