"""Waits of a run with data and tensor parallelism are told by axis, and the late rank's peers wait in the right one."""

from __future__ import annotations

import subprocess
import sys

import pytest

from perfscope.analyzers.stragglers.lateness import Cause
from perfscope.analyzers.stragglers.parts import Part
from perfscope.analyzers.stragglers.records import LateRanks, analyze
from perfscope.sources.runs.run import read_run
from tests.conftest import SCRIPTS, environment

pytestmark = [pytest.mark.slow, pytest.mark.xdist_group("axes")]


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> dict[str, LateRanks]:
    out = tmp_path_factory.mktemp("axes")
    cases = ("ddp.tp", "fsdp2.tp", "ddp.clean")
    command = [sys.executable, str(SCRIPTS / "two_axes.py"), "--out", str(out), *cases]
    ended = subprocess.run(command, cwd=out, env=environment(), capture_output=True, text=True, check=False)
    assert ended.returncode == 0, ended.stderr
    return {case: analyze(read_run(out / case)) for case in cases}


def waits(result: LateRanks, rank: int) -> dict[str, int]:
    """The waits of a rank by axis, which add up to its exchange."""
    assert result.parts is not None
    by_axis: dict[str, int] = result.data()["ranks"][rank]["exchange_by_axis_ns"]  # type: ignore[index, call-overload, assignment]
    assert sum(by_axis.values()) == int(result.parts.parts_ns[Part.EXCHANGE][rank].sum())
    return by_axis


@pytest.mark.parametrize(("case", "peers"), [("ddp.tp", {1: "DP", 2: "TP"}), ("fsdp2.tp", {1: "DP", 2: "TP"})])
def test_the_peers_of_a_late_rank_wait_for_it_in_the_axis_that_they_share(
    case: str, peers: dict[int, str], runs: dict[str, LateRanks]
) -> None:
    result = runs[case]
    assert (3, Cause.BLOCKED) in [(late.rank, late.cause) for late in result.late]
    cost_ns = next(late.cost_ns for late in result.late if late.rank == 3)
    for rank, axis in peers.items():
        by_axis = waits(result, rank)
        other = {"DP": "TP", "TP": "DP"}[axis]
        assert by_axis[axis] > 0.5 * cost_ns, by_axis
        assert by_axis[axis] > by_axis.get(other, 0), by_axis
        assert by_axis["collectives"] < 0.2 * sum(by_axis.values()), by_axis
    assert sum(waits(result, 3).values()) < 0.5 * cost_ns


def test_a_clean_twin_waits_in_both_axes_and_blames_no_sleep(runs: dict[str, LateRanks]) -> None:
    result = runs["ddp.clean"]
    assert Cause.BLOCKED not in [late.cause for late in result.late]
    for rank in range(4):
        by_axis = waits(result, rank)
        assert {"DP", "TP"} <= set(by_axis)
        assert by_axis["collectives"] < 0.2 * sum(by_axis.values()), by_axis


def test_the_report_says_the_waits_by_axis(runs: dict[str, LateRanks]) -> None:
    notes = [note for section in runs["ddp.tp"].sections() for note in section.notes]
    (note,) = [note for note in notes if note.startswith("Waits for ranks by axis")]
    assert "DP" in note
    assert "TP" in note
