"""What cannot be read of groups and meshes costs the layout alone: the capture goes on."""

from __future__ import annotations

from typing import Any, cast

import pytest
from torch import distributed

from perfscope.hooks.capture import Capture
from perfscope.hooks.facts import launched_rank
from perfscope.hooks.rank_files import RankFiles
from perfscope.hooks.step import StepAccumulator


class Files:
    """The files of a rank, of which only the layout is written."""

    def __init__(self) -> None:
        self.layout: Any = None

    def write_layout(self, layout: Any, _lines: Any) -> None:
        self.layout = layout

    @property
    def sizes(self) -> Any:
        return None if self.layout is None else self.layout["sizes"]


class Position(Capture):
    """A position whose failures are the test's."""

    def __init__(self, place: tuple[int, int], monkeypatch: pytest.MonkeyPatch) -> None:
        self.written, self.step = Files(), StepAccumulator()
        self.files, self._layout = cast("RankFiles", self.written), None
        self._patch = monkeypatch
        self.move(place)

    def move(self, place: tuple[int, int]) -> None:
        self._patch.setattr(launched_rank, "rank_and_world_size", lambda: place)

    def abandon(self, reason: str) -> None:
        raise AssertionError(reason)


class Unreadable:
    """A mesh of a framework of its own: reading its ranks raises."""

    ndim = 1
    mesh_dim_names = ("tp",)

    @property
    def mesh(self) -> object:
        raise AttributeError("no tensor of ranks")

    def get_coordinate(self) -> list[int]:
        raise RuntimeError("not a rank")


def test_a_group_that_torch_does_not_know_leaves_the_layout_unknown(monkeypatch: pytest.MonkeyPatch) -> None:
    position = Position((1, 4), monkeypatch)
    position.set_axis_group("dp", distributed.ProcessGroup(0, 1))
    assert position.written.sizes is None


def test_a_mesh_that_cannot_be_read_leaves_the_layout_unknown(monkeypatch: pytest.MonkeyPatch) -> None:
    position = Position((1, 4), monkeypatch)
    position.set_mesh(Unreadable())
    position.set_sharding_mesh(Unreadable())
    position.set_tensor_mesh(Unreadable(), object())
    assert position.written.sizes is None
    position.set_axis("dp", lambda: range(4))
    assert position.written.sizes == {"dp": 4, "pp": 1, "tp": 1}


def test_groups_that_are_made_anew_have_a_layout_of_their_own(monkeypatch: pytest.MonkeyPatch) -> None:
    position = Position((3, 4), monkeypatch)
    position.set_axis("dp", lambda: range(4))
    position.move((1, 2))
    position.set_axis("dp", lambda: range(2))
    assert position.written.layout["coordinates"]["dp"] == 1
    position.move((0, 1))  # its groups are destroyed
    position.set_axis("dp", lambda: range(2))
    assert position.written.sizes["dp"] == 2
