"""What frameworks report of a process's position: its rank, its process groups, its axes of parallelism."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any

from perfscope.hooks.facts import launched_rank, sharding
from perfscope.hooks.facts.layout import Layout, splits_tensors
from perfscope.hooks.guard import hook_entry, value_or_none

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from perfscope.hooks.rank_files import RankFiles


class RankPosition:
    """The position of one process; its methods are safe to call from training.

    Attributes:
        files: The files of the rank.
    """

    def __init__(self, files: RankFiles) -> None:
        self.files = files
        self._layout: Layout | None = None

    @hook_entry
    def on_process_group(self) -> None:
        """torch.distributed knows the rank."""
        if not launched_rank.is_daemon_process():
            self.files.claim()

    @hook_entry
    def adopt_process_group(self) -> None:
        """Learn the rank of a group that was there before the capture."""
        distributed = sys.modules.get("torch.distributed")
        if distributed is not None and distributed.is_available() and distributed.is_initialized():
            self.files.claim()

    @hook_entry
    def set_layout(self, coordinates: dict[str, int], sizes: dict[str, int]) -> None:
        """A framework states this rank's coordinates in all process groups, and their sizes, by axis."""
        self._position().set_framework_layout(coordinates, sizes)
        self._write_layout()

    @hook_entry
    def set_axis(self, axis: str, ranks: Sequence[int]) -> None:
        """A wrapper works on one axis of parallelism, over these ranks."""
        self._position().set_axis(axis, ranks)
        self._write_layout()

    @hook_entry
    def set_axis_ranks(self, axis: str, read: Callable[[], Sequence[int]]) -> None:
        """A wrapper works on one axis of parallelism; ranks that cannot be read cost the layout alone."""
        ranks = value_or_none(read)
        if ranks:
            self.set_axis(axis, ranks)

    @hook_entry
    def set_axis_group(self, axis: str, group: object) -> None:
        """A wrapper works on one axis of parallelism, in this process group; None is the one of all ranks.

        Groups that torch does not know, as those of fault-tolerant trainings, have no ranks.
        """
        distributed = sys.modules["torch.distributed"]
        group = distributed.group.WORLD if group is None else group
        self.set_axis_ranks(axis, lambda: distributed.get_process_group_ranks(group))

    @hook_entry
    def set_mesh(self, mesh: Any) -> None:
        """A mesh of ranks is used; one whose ranks cannot be read costs the layout alone."""
        value_or_none(lambda: self._position().set_mesh(mesh))
        self._write_layout()

    @hook_entry
    def set_sharding_mesh(self, mesh: Any) -> None:
        """Parameters are sharded over a mesh, or over some dimensions of one: those of experts are parts of it."""
        find_root = getattr(mesh, "_get_root_mesh", None)  # absent in old versions
        root = None if find_root is None else value_or_none(find_root)
        self.set_mesh(mesh if root is None else root)
        self.set_axis_ranks("dp", lambda: mesh.mesh.flatten().tolist())

    @hook_entry
    def set_tensor_mesh(self, mesh: Any, plan: Any) -> None:
        """A module is split over a mesh by a plan, which is tensor parallelism if the mesh or the plan says so."""
        if value_or_none(lambda: mesh.ndim == 1 and splits_tensors(mesh, plan)):
            sharding.add_tensor_mesh(mesh)
            self.set_axis_ranks("tp", lambda: mesh.mesh.flatten().tolist())

    @hook_entry
    def set_groups(self, groups: Sequence[Mapping[str, object]]) -> None:
        """The training thread waits for the work of these process groups: their ranks and descriptions."""
        self._position().set_groups(groups)
        self._write_layout()

    def _position(self) -> Layout:
        position = launched_rank.rank_and_world_size()
        is_alone = position[1] == 1  # also where its groups were destroyed
        if self._layout is None or not (is_alone or self._layout.position == position):
            self._layout = Layout(*position)
        return self._layout

    def _write_layout(self) -> None:
        layout = self._position()
        self.files.write_layout(layout.document(), layout.lines())
