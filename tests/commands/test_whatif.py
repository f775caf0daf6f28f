"""``perfscope whatif`` on real traces: its JSON, its table, and what it refuses."""

from __future__ import annotations

import pytest

from tests.commands.report_cli import run
from tests.conftest import ROOT

BASE = ROOT / "fixtures" / "whatif" / "base"


def test_the_json_has_the_step_its_replay_and_the_scenarios(capsys: pytest.CaptureFixture[str]) -> None:
    answer = run(capsys, "whatif", BASE, "--format", "json")
    assert answer.code == 0
    document = answer.data
    assert document["schema"] == "perfscope/whatif/1"
    assert abs(document["replay_error"]) < 0.002
    assert document["measured_step_us"] == pytest.approx(51_960, rel=1e-3)
    assert document["scenarios"][0]["name"] == "communication-free"
    assert set(document["scenarios"][0]) >= {"name", "step_us", "saved_us", "change", "assumptions", "interval_us"}
    assert set(document["critical_path"][0]) == {"rank", "cause", "name", "us", "share"}
    assert sum(part["share"] for part in document["critical_path"]) == pytest.approx(1)
    assert document["contention"][0]["slowdown"] > 0


def test_chosen_scenarios_are_answered_alone_and_in_the_order_of_what_they_save(
    capsys: pytest.CaptureFixture[str],
) -> None:
    chosen = ("--scenario", "faster-communication=2", "--scenario", "launch-free", "--scenario", "communication-free")
    document = run(capsys, "whatif", BASE, *chosen, "--format", "json").data
    names = [scenario["name"] for scenario in document["scenarios"]]
    assert names == ["communication-free", "launch-free", "faster-communication=2"]


@pytest.mark.parametrize(
    ("scenario", "problem"),
    [
        ("faster-kernel=nvjet:nan", "must be a positive number"),
        ("faster-communication=EP:2", "no communication of 'EP'"),
        ("median-host=9", "is no rank of the traces"),
    ],
)
def test_a_scenario_that_names_nothing_ends_with_one_line(
    capsys: pytest.CaptureFixture[str], scenario: str, problem: str
) -> None:
    answer = run(capsys, "whatif", BASE, "--scenario", scenario)
    assert answer.code == 2
    assert problem in answer.err


@pytest.mark.parametrize(
    ("scenario", "reason"),
    [
        ("recomputation-off", "nothing was recomputed"),
    ],
)
def test_what_these_traces_cannot_tell_has_a_reason(
    capsys: pytest.CaptureFixture[str], scenario: str, reason: str
) -> None:
    answer = run(capsys, "whatif", BASE, "--scenario", scenario, "--format", "json")
    assert answer.code == 0
    assert answer.data["scenarios"] == []
    (refused,) = answer.data["refused"]
    assert reason in refused["reason"]
