"""Pairs of a sweep are changes of one thing, predicted from the traces of one run and measured in the other."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from benchmarks.sweep_pairs import SweepPair, document, judge, list_pairs
from benchmarks.whatif_pairs import FOLDER

PIPELINES = FOLDER / "pairs" / "pipelines"


def row(schedule: str, m: int) -> dict[str, Any]:
    return {"schedule": schedule, "microbatches": m}


ROWS = {
    "torch_1f1b_m4": row("1f1b", 4),
    "torch_1f1b_m8": row("1f1b", 8),
    "torch_interleaved_m8": row("interleaved", 8),
    "torch_1f1b_m8_slow_device": row("1f1b", 8),
    "torch_1f1b_m8_slow_host": row("1f1b", 8),
}


def test_a_pair_differs_in_one_thing() -> None:
    pairs = set(list_pairs(ROWS))
    assert SweepPair("torch_1f1b_m4", "microbatches=8", "torch_1f1b_m8") in pairs
    assert SweepPair("torch_1f1b_m8", "schedule=interleaved:2", "torch_interleaved_m8") in pairs
    assert SweepPair("torch_interleaved_m8", "schedule=1f1b", "torch_1f1b_m8") in pairs
    assert not any((pair.traced, pair.made) == ("torch_1f1b_m4", "torch_interleaved_m8") for pair in pairs)


def test_a_slow_rank_is_made_like_the_others_and_nothing_else() -> None:
    pairs = [pair for pair in list_pairs(ROWS) if "_slow_" in pair.traced + pair.made]
    assert set(pairs) == {
        SweepPair("torch_1f1b_m8_slow_device", "median-device=2", "torch_1f1b_m8"),
        SweepPair("torch_1f1b_m8_slow_device", "no-stragglers", "torch_1f1b_m8"),
        SweepPair("torch_1f1b_m8_slow_host", "median-host=1", "torch_1f1b_m8"),
        SweepPair("torch_1f1b_m8_slow_host", "no-stragglers", "torch_1f1b_m8"),
    }


def test_the_prediction_stands_beside_what_the_changed_training_took(tmp_path: Path) -> None:
    truth = json.loads((PIPELINES / "truth.json").read_text())
    for m in (4, 8):
        step_ms = truth[f"1f1b_m{m}"]["median_ms"]
        (tmp_path / f"torch_1f1b_m{m}.json").write_text(json.dumps(row("1f1b", m) | {"step_ms": step_ms}))
    (tmp_path / "torch_1f1b_m4").mkdir()
    (tmp_path / "torch_1f1b_m4" / "traces").symlink_to(PIPELINES / "1f1b_m4")
    (pair,) = judge(tmp_path)
    assert abs(pair["error"]) < 0.05
    assert "| `torch_1f1b_m4` | `microbatches=8` | " in document([pair])
    assert document([pair]).rstrip(" |").endswith("yes")


def test_a_pair_without_an_answer_says_why() -> None:
    judged = {"traced": "a", "scenario": "microbatches=8", "made": "b", "took_ms": 1.0, "reason": "no trace"}
    assert document([judged]).rstrip(" |").endswith("no trace")
