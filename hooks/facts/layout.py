"""Where this rank stands among data-, tensor-, pipeline- and context-parallel groups, put together from what uses them.

A framework that tells its whole layout is believed. Else a mesh whose named dimensions span all ranks does; else each
wrapper tells the axis that it works on, and the axes that nothing uses have one place where the others span all ranks.
"""

from __future__ import annotations

import math
from typing import Any

#: What people call the dimensions of a mesh, by the axis that they are.
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
    """One rank's place.

    Attributes:
        whole: True once a framework told all of it.
    """

    def __init__(self) -> None:
        self.whole = False
        self._spanning: dict[str, tuple[int, int]] = {}
        self._axes: dict[str, tuple[int, int]] = {}

    def learn_axis(self, axis: str, index: int, size: int) -> None:
        """A wrapper works on one axis: this rank's index among how many."""
        self._axes[axis] = (index, size)

    def learn_mesh(self, mesh: Any, world_size: int) -> None:
        """A mesh was made; it tells the layout where its dimensions have names that are known and span all ranks."""
        axes = mesh_axes(mesh)
        if axes and math.prod(size for _, size in axes.values()) == world_size:
            self._spanning = axes

    def document(self, world_size: int) -> dict[str, Any] | None:
        """What is to be written; None where nothing is known."""
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
        own = mesh.size(dimension)
        axes[_NAMES[name]] = (index * own + int(coordinate[dimension]), size * own)
    return axes
