"""What changed kernels cost on the critical path: one rank's more work, its clean twin, and sides without traces."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.commands.report_cli import run
from tests.conftest import ROOT

BASE, SLOW = (ROOT / "fixtures" / "whatif" / name for name in ("base", "slow_gpu"))
MULTIPLIED = "nvjet_sm90_tst_256x128_64x4_1x2_h_bz_coopA_NNT"
BESIDE_A_WAIT = "nvjet_sm90_tst_128x256_64x4_2x1_v_bz_coopA_NTN"

Capture = pytest.CaptureFixture[str]


def compared(capsys: Capture, *arguments: object) -> Any:
    answer = run(capsys, "compare", *arguments, "--format", "json")
    assert answer.code == 0, answer.err
    return answer.data


def test_more_work_of_one_rank_costs_the_whole_step_and_not_its_mean_over_ranks(capsys: Capture) -> None:
    """Rank 1 multiplies 30 more matrices: half of it is in the budget's term, and all of it on the critical path."""
    document = compared(capsys, BASE, SLOW, "--replay")
    by_kernel = {term["kernel"]: term for term in document["replays"]}
    product = by_kernel[MULTIPLIED]
    assert 1.4 * product["change_us"] < product["replayed_us"] <= document["change_us"]
    low, high = product["interval_us"]
    assert low < product["replayed_us"] < high
    # The budget also has 1.7 ms of a product that runs beside rank 0's wait: no step is longer for it.
    waits = by_kernel[BESIDE_A_WAIT]
    assert waits["change_us"] > 1500
    assert abs(waits["replayed_us"]) < 300
    # The replays stand beside the budget, which adds up as before.
    total = sum(term["change_us"] for term in document["terms"]) + document["unexplained_us"]
    assert total == pytest.approx(document["change_us"], abs=0.01)


def test_the_other_way_round_the_step_is_shorter_for_what_it_does_no_more(capsys: Capture) -> None:
    (first, *_) = compared(capsys, SLOW, BASE, "--replay")["replays"]
    assert first["kernel"] == MULTIPLIED
    assert first["replayed_us"] < first["change_us"] < 0


def test_a_clean_twin_has_nothing_to_replay(capsys: Capture) -> None:
    assert compared(capsys, BASE, BASE, "--replay")["replays"] == []
    assert compared(capsys, BASE, SLOW)["replays"] is None


def test_sides_without_traces_say_why_nothing_is_replayed(tmp_path: Path, capsys: Capture) -> None:
    baseline = tmp_path / "base.json"
    assert run(capsys, "compare", BASE, "--save", baseline).code == 0
    log = ROOT / "fixtures" / "logs" / "deepspeed_zero1_h200.log"
    for sides in ((baseline, SLOW), (log, SLOW)):
        document = compared(capsys, *sides, "--replay")
        assert document["replays"] == []
        assert any(note.startswith("Nothing is replayed: ") for note in document["notes"])
