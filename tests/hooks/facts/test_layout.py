"""The layout of a rank from torch's own meshes, whose process groups nobody joins here, and from wrappers."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from math import prod
from typing import Any, TypeAlias, cast

import pytest
from torch import distributed
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.testing._internal.distributed.fake_pg import FakeStore

from perfscope.hooks.capture import Capture
from perfscope.hooks.facts import launched_rank
from perfscope.hooks.facts.layout import RankLayout
from perfscope.hooks.rank_files import RankFiles
from perfscope.hooks.step import StepAccumulator

WORLD = 8
_Dims: TypeAlias = dict[str, int]


def mesh(**dims: int) -> DeviceMesh:
    return init_device_mesh("cpu", tuple(dims.values()), mesh_dim_names=tuple(dims))


def titan(pp: int = 1, replicate: int = 1, shard: int = 1, cp: int = 1, tp: int = 1, ep: int = 1, etp: int = 1) -> None:
    """The meshes of torchtitan 0.2.2, in its order: all of them views of one mesh of all ranks."""
    world = seen(mesh(world=WORLD))
    assert pp * replicate * shard * cp * tp == WORLD
    views: list[_Dims] = [
        {"pp": pp, "batch": replicate * shard, "cp": cp, "tp": tp},
        {"pp": pp, "dp_replicate": replicate, "fsdp": shard * cp, "tp": tp},
        {"pp": pp, "dp_replicate": replicate, "efsdp": shard * cp * tp // (ep * etp), "ep": ep, "etp": etp},
    ]
    for view in views:
        seen(world._unflatten(0, tuple(view.values()), tuple(view)))


_layout = RankLayout(0, 1)


def seen(made: DeviceMesh) -> DeviceMesh:
    _layout.set_mesh(made)
    return made


@pytest.fixture(params=[0, 3, 6])
def rank(request: pytest.FixtureRequest) -> Iterator[int]:
    number = int(request.param)
    distributed.init_process_group("fake", rank=number, world_size=WORLD, store=FakeStore())
    global _layout  # noqa: PLW0603 - what hooks around torch do, without a training
    _layout = RankLayout(number, WORLD)
    yield number
    distributed.destroy_process_group()


CASES: list[tuple[str, Callable[[], object], _Dims]] = [
    ("fsdp", lambda: titan(shard=8), {"dp": 8}),
    ("hsdp", lambda: titan(replicate=2, shard=4), {"dp": 8}),
    ("fsdp and tp", lambda: titan(shard=4, tp=2), {"dp": 4, "tp": 2}),
    ("fsdp and ep", lambda: titan(shard=8, ep=8), {"dp": 8, "ep": 8}),
    ("tp and ep", lambda: titan(shard=4, tp=2, ep=8), {"dp": 4, "tp": 2, "ep": 8}),
    ("tp, ep and etp", lambda: titan(shard=4, tp=2, ep=4, etp=2), {"dp": 4, "tp": 2, "ep": 4, "etp": 2}),
    ("all", lambda: titan(pp=2, shard=2, cp=2, ep=4), {"pp": 2, "dp": 2, "cp": 2, "ep": 4}),
    (
        "before 0.2.2",
        lambda: seen(seen(mesh(pp=2, dp_shard_mod_ep=2, dp_shard_in_ep=2))["dp_shard_in_ep"]._flatten("ep")),
        {"pp": 2, "dp": 4, "ep": 2},
    ),
    ("Accelerate", lambda: seen(mesh(dp_replicate=2, dp_shard=2, cp=2)), {"dp": 4, "cp": 2}),
    ("DeepSpeed", lambda: seen(mesh(data_parallel=2, sequence_parallel=4)), {"dp": 2, "cp": 4}),
    ("experts alone", lambda: seen(mesh(dp=2, ep=4)), {"dp": 8, "ep": 4}),
    ("a finer mesh after a coarse one", lambda: (seen(mesh(dp=8)), seen(mesh(dp=2, tp=4))), {"dp": 2, "tp": 4}),
    ("a coarse mesh after a finer one", lambda: (seen(mesh(dp=2, tp=4)), seen(mesh(dp=8))), {"dp": 2, "tp": 4}),
]


@pytest.mark.parametrize(("make", "sizes"), [case[1:] for case in CASES], ids=[case[0] for case in CASES])
def test_the_layout_of_meshes(make: Callable[[], object], sizes: _Dims, rank: int) -> None:
    make()
    document = _layout.document()
    assert document is not None
    assert document["sizes"] == {"dp": 1, "pp": 1, "tp": 1, **sizes}
    assert prod(size for axis, size in sizes.items() if axis not in ("ep", "etp")) == WORLD
    lines = _layout.lines()
    assert {axis: len(line) for axis, line in lines.items()} == sizes
    assert document["coordinates"] == {
        **dict.fromkeys(("dp", "pp", "tp"), 0),
        **{axis: line.index(rank) for axis, line in lines.items()},
    }


def test_coordinates_count_the_last_axis_fastest(rank: int) -> None:
    titan(pp=2, shard=2, tp=2, ep=2)
    assert _layout.document() == {
        "coordinates": {"pp": rank // 4, "dp": rank // 2 % 2, "tp": rank % 2, "ep": rank % 2},
        "sizes": {"pp": 2, "dp": 2, "tp": 2, "ep": 2},
    }
    first = rank // 4 * 4
    assert _layout.lines()["dp"] == (first + rank % 2, first + rank % 2 + 2)
    assert _layout.lines()["ep"] == (rank // 2 * 2, rank // 2 * 2 + 1)


@pytest.mark.parametrize(
    "make",
    [
        lambda: seen(init_device_mesh("cpu", (2, 4))),
        lambda: seen(mesh(rows=2, columns=4)),
        lambda: seen(mesh(dp=2, columns=4)),
        lambda: seen(mesh(dp=2, columns=4)["dp"]),
        lambda: seen(mesh(world=8)),
    ],
)
def test_nothing_is_guessed_of_names_that_are_unknown(make: Callable[[], object], rank: int) -> None:
    make()
    assert _layout.document() is None
    assert _layout.lines() == {}


def test_what_wrappers_report_counts_where_no_mesh_spans_all_ranks() -> None:
    layout = RankLayout(3, 4)
    layout.set_axis("dp", [1, 3])
    assert layout.document() == {"coordinates": {"dp": 1}, "sizes": {"dp": 2}}
    layout.set_axis("pp", [2, 3])
    assert layout.document() == {"coordinates": {"dp": 1, "pp": 1, "tp": 0}, "sizes": {"dp": 2, "pp": 2, "tp": 1}}
    assert layout.lines() == {"dp": (1, 3), "pp": (2, 3)}


def test_of_two_models_the_one_with_more_ranks_counts_and_contradictions_are_unknown() -> None:
    layout = RankLayout(1, 4)
    layout.set_axis("dp", [0, 1, 2, 3])
    layout.set_axis("dp", [0, 1])
    layout.set_axis("dp", [2, 3])  # of other ranks
    assert layout.lines() == {"dp": (0, 1, 2, 3)}
    layout.set_axis("tp", [0, 1, 2, 3])
    assert layout.document() is None


def test_what_a_framework_states_comes_first_and_names_one_axis_of_all_ranks() -> None:
    layout = RankLayout(1, 4)
    layout.set_framework_layout({"dp": 1, "pp": 0, "tp": 0}, {"dp": 4, "pp": 1, "tp": 1})
    layout.set_axis("dp", [0, 1])
    assert layout.document() == {"coordinates": {"dp": 1, "pp": 0, "tp": 0}, "sizes": {"dp": 4, "pp": 1, "tp": 1}}
    assert layout.lines() == {"dp": (0, 1, 2, 3)}
    layout.set_framework_layout({"dp": 1, "pp": 0, "tp": 0}, {"dp": 2, "pp": 1, "tp": 2})
    assert layout.lines() == {}


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
