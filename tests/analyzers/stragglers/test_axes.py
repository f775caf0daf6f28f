"""Process groups are named by torch's description, or by where their ranks are."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path

import msgspec
import numpy as np
import pytest

from perfscope import wire
from perfscope.analyzers.stragglers.parts import Part
from perfscope.analyzers.stragglers.records import analyze, axes_of_groups
from perfscope.sources.runs.run import read_run
from perfscope.tables.run import ProcessGroup, Rank, Run
from perfscope.wire.records import RankRecord, to_line
from tests.analyzers.stragglers.test_lateness import make_steps


def make_run(groups: tuple[ProcessGroup, ...]) -> Run:
    """Four ranks of two replicas of two tensor-parallel ranks, all with the same groups."""
    ranks = tuple(
        Rank(rank, 0, 4, "node", None, (), None, "cpu", None, (), {"dp": rank // 2, "tp": rank % 2, "pp": 0}, groups)
        for rank in range(4)
    )
    return Run("run", (), None, ranks, (), (), ())


@pytest.mark.parametrize(
    ("ranks", "description", "axis"),
    [
        ((0, 1), "mesh_tp", "TP"),
        ((0, 2), "mesh_dp_shard", "DP"),
        ((0, 2), "undefined", "DP"),
        ((2, 3), "", "TP"),
        ((0, 1, 2, 3), "default_pg", ""),
        ((0, 1, 2, 3), "undefined", ""),
        ((0, 3), "undefined", ""),
        ((0, 7), "undefined", ""),
    ],
)
def test_the_axis_of_a_group(ranks: tuple[int, ...], description: str, axis: str) -> None:
    run = make_run((ProcessGroup(ranks, description),))
    assert axes_of_groups(run) == dict.fromkeys(range(4), (axis,))


def test_waits_of_several_groups_of_an_axis_add_up_and_never_exceed_the_exchange() -> None:
    groups = (ProcessGroup((0, 1), "mesh_tp"), ProcessGroup((0, 2), "mesh_dp"), ProcessGroup((0, 2), "undefined"))
    run = make_run((*groups, ProcessGroup((0, 1, 2, 3), "default_pg")))
    tables = []
    for table in make_steps([{}, {}, {}, {0: {"compute": 5}}]):
        assert table.host is not None
        whole = np.ma.filled(table.host.collectives_ns, 0)
        shares = [np.ma.MaskedArray(whole // part) for part in (2, 4, 8, 16)]
        named = {f"group{index}_ns": share for index, share in enumerate(shares)}
        tables.append(dataclasses.replace(table, host=dataclasses.replace(table.host, **named)))
    result = analyze(msgspec.structs.replace(run, steps=tuple(tables)))
    assert result.parts is not None
    for row, rank in enumerate(result.data()["ranks"]):  # type: ignore[call-overload, index, arg-type]
        exchange = result.parts.parts_ns[Part.EXCHANGE][row]
        by_axis = rank["exchange_by_axis_ns"]
        assert by_axis["TP"] == int((exchange // 2).sum())
        assert by_axis["DP"] == int((exchange // 4 + exchange // 8).sum())
        assert sum(by_axis.values()) == int(exchange.sum())
    tables = [
        dataclasses.replace(table, host=dataclasses.replace(table.host, group0_ns=table.host.collectives_ns * 3))
        for table in tables
        if table.host is not None
    ]
    result = analyze(msgspec.structs.replace(run, steps=tuple(tables)))
    for of_rank in result.ranks:
        exchange_ns = of_rank.parts_ns[Part.EXCHANGE]
        assert of_rank.exchange_by_axis_ns == {"TP": exchange_ns, "DP": 0, "collectives": 0, "transfers": 0}


@pytest.mark.parametrize("groups", [None, 5, ["x"], [{"ranks": [0, "one"], "description": "mesh_tp"}]])
def test_groups_that_cannot_be_read_are_none(groups: object, tmp_path: Path) -> None:
    folder = tmp_path / wire.RANKS_FOLDER / wire.rank_folder(0)
    folder.mkdir(parents=True)
    (folder / wire.RANK_FILE).write_bytes(to_line(RankRecord(0, 1, "node", 1, 0, 0, "3.11")))
    (folder / wire.PARALLEL_FILE).write_text(json.dumps({"coordinates": {"dp": 0}, "sizes": {}, "groups": groups}))
    (rank,) = read_run(tmp_path).ranks
    assert rank.groups == ()
    assert rank.parallel == {"dp": 0}
