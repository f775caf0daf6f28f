"""HTA, in an environment of its own with pandas below 3, reads a run's traces and agrees on the device's time."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tests.conftest import ROOT, analysis, run
from tests.viewers.conftest import H200

pytestmark = pytest.mark.slow

PYTHON = ROOT / ".venv" / "hta" / "bin" / "python"
SCRIPT = Path(__file__).with_name("ask_hta.py")


def asked(traces: Path, tmp_path: Path) -> dict[str, Any]:
    assert PYTHON.exists(), "HTA's environment is missing: make hta"
    ended = run([PYTHON, SCRIPT, traces], tmp_path)
    assert ended.code == 0, ended.stderr[-3000:]
    (line,) = [line for line in ended.stdout.splitlines() if line.startswith("ANSWERS ")]
    document: dict[str, Any] = json.loads(line.removeprefix("ANSWERS "))
    return document


def test_a_run_on_gpus_loads_whole_and_its_shares_are_ours(tmp_path: Path) -> None:
    answers = asked(H200, tmp_path)
    assert answers["ranks"] == [0, 1, 2, 3]
    assert {row["kernel_type"] for row in answers["kernels"]} == {"COMPUTATION", "COMMUNICATION", "MEMORY"}
    assert {row["idle_category"] for row in answers["idle"]} == {"host_wait", "kernel_wait", "other"}
    ours = {rank["rank"]: rank for rank in analysis(H200.parent)["results"]["breakdown"]["ranks"]}
    for row in answers["temporal"]:
        mine = ours[row["rank"]]
        assert row["compute_time_pctg"] == pytest.approx(100 * mine["compute_us"] / mine["window_us"], abs=1.5)
        # HTA rounds every kernel inwards to microseconds, so that it sees more idle time than there is.
        assert 0 <= row["idle_time_pctg"] - 100 * mine["idle_us"] / mine["window_us"] < 3
