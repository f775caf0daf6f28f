"""``perfscope report mfu``: runs side by side, each with what its MFU rests on."""

from __future__ import annotations

from pathlib import Path

import pytest

from perfscope.wire.model import PrecisionRecord
from tests.analyzers.flops.making import answer, ask
from tests.analyzers.test_mfu import run_folder
from tests.conftest import ROOT

RUN = ROOT / "fixtures" / "runs" / "h200_zero2"


def test_runs_stand_side_by_side_with_what_was_counted(tmp_path: Path) -> None:
    plain = run_folder(tmp_path, "NVIDIA H200", dtype="fp32", precision=PrecisionRecord(policy="bf16"))
    traced, recorded = answer("report", "mfu", RUN, plain)["results"]["runs"]
    alone = answer("analyze", RUN, "--only", "mfu")["results"]["mfu"]
    assert traced["mfu"] == alone
    tokens_per_s = (
        alone["tflops_per_gpu"]
        * 1e12
        / next(each["flops_per_token"] for each in alone["conventions"] if each["name"] == "megatron_core")
    )
    expected = alone["counted"]["flops_per_token"] * tokens_per_s / 989.4e12
    assert traced["counted_share_of_peak"] == pytest.approx(expected)
    assert (recorded["parameters_dtype"], recorded["recorded_dtype"]) == ("fp32", "bf16")
    assert recorded["counted_share_of_peak"] is None
    assert recorded["mfu"]["dtype"] == "bf16"


def test_a_run_without_mfu_has_a_row_and_a_reason(tmp_path: Path) -> None:
    run = run_folder(tmp_path, "NVIDIA H200")
    for model in run.rglob("model.json"):
        model.unlink()
    text = ask("report", "mfu", run).stdout
    assert "| RUN" in text
    assert "RUN: no rank recorded which model it trains" in text
