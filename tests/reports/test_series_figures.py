"""The reports of four ranks, on the quarters of a GPU and on four GPUs, are what their raw figures say."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from benchmarks.series_figures import collect, document
from tests.bench.examples import measurement, variant
from tests.conftest import ROOT

QUARTERS = ROOT / "fixtures" / "quarters" / "h200.json"
FOUR_GPUS = ROOT / "fixtures" / "four_gpus" / "h100.json"
REPORTS = {QUARTERS: "h200-quarters.md", FOUR_GPUS: "h100-four-gpus.md"}


def figures(path: Path = QUARTERS) -> dict[str, Any]:
    raw: dict[str, Any] = json.loads(path.read_text())
    return raw


@pytest.mark.parametrize("raw", REPORTS, ids=lambda path: path.stem)
def test_the_tables_are_those_of_the_raw_file(raw: Path) -> None:
    report = (ROOT / "reports" / REPORTS[raw]).read_text()
    assert report.endswith(document(figures(raw)))
    changed = figures(raw)
    changed["sweeps"]["torch_pp"]["torch_1f1b_m8"]["trace_schedule"] += 0.01
    assert not report.endswith(document(changed))


def test_predictions_on_four_gpus_hold_but_where_the_report_says_so() -> None:
    judged = {(pair["traced"], pair["scenario"]): pair for pair in figures(FOUR_GPUS)["pairs"]}
    outside = {
        key for key, pair in judged.items() if abs(pair["predicted_ms"] - pair["took_ms"]) > pair["uncertain_ms"]
    }
    assert outside == {("torch_fsdp2", "communication-free"), ("torch_1f1b_m8", "schedule=zb-h1")}
    others = [abs(pair["error"]) for key, pair in judged.items() if key[1].startswith("microbatches=")]
    assert len(others) == 14
    assert sum(error < 0.05 for error in others) == 12


def test_the_schedules_share_is_theory_of_what_transfers_and_gaps_leave() -> None:
    for rows in figures()["sweeps"].values():
        for name, row in rows.items():
            if "_1f1b_m" in name and "slow" not in name and row["trace_schedule"] is not None:
                left = 1 - row["trace_transfer"] - row["trace_host"] - row["trace_imbalance"]
                assert abs(row["trace_schedule"] - left * row["theory"]) < 0.005
                assert 0 < row["hooks_schedule"] - row["trace_schedule"] < 0.025


@pytest.mark.parametrize("raw", REPORTS, ids=lambda path: path.stem)
def test_every_stopped_training_is_explained(raw: Path) -> None:
    stopped = figures(raw)["stopped"]
    assert len(stopped) >= 5
    assert all(result["is_right"] and result["blamed"] == [result["rank"]] for result in stopped)


def test_figures_of_an_earlier_call_stay(tmp_path: Path) -> None:
    runs = tmp_path / "torch_pp" / "runs"
    runs.mkdir(parents=True)
    (runs / "torch_1f1b_m16.json").write_text(json.dumps({"schedule": "1f1b", "microbatches": 16, "step_ms": 800.0}))
    (runs / "plain_after.json").write_text("450.0")
    collected = collect(tmp_path, figures())["sweeps"]["torch_pp"]
    assert {"torch_1f1b_m4", "torch_1f1b_m8", "torch_1f1b_m16"} <= set(collected)
    assert collected["plain"] == 450.0


def test_predictions_of_the_same_call_on_traces_and_trainings_without_a_pipeline_are_collected(tmp_path: Path) -> None:
    judged = {"traced": "a_1f1b_m8", "scenario": "schedule=zbv", "made": "a_zbv_m8", "took_ms": 1.0, "reason": "none"}
    (tmp_path / "pairs_torch_pp.json").write_text(json.dumps([judged]))
    rows = tmp_path / "scaling_law" / "bench" / "rows"
    rows.mkdir(parents=True)
    measured = measurement(variant("ddp", 2), 10.0, nodes=2)
    measured.write(rows)
    before = figures()
    collected = collect(tmp_path, figures())
    assert collected["pairs"][-1] == judged
    assert len(collected["bench"]) == len(before["bench"]) + 1
    assert collected["bench"][-1]["repetition"] == 1 + max(row["repetition"] for row in before["bench"])
    assert collected["bench"][-1]["nodes"] == 2
    assert collected["runs"] == before["runs"]
