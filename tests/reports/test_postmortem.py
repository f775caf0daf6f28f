"""The matrix of post-mortems in the report is that of its raw file, and holds what it promises."""

from __future__ import annotations

import json
from statistics import mean, stdev

from benchmarks.postmortem import to_markdown
from tests.conftest import ROOT

REPORT = (ROOT / "reports" / "postmortem.md").read_text()


def test_the_matrix_is_that_of_the_raw_file() -> None:
    results = json.loads((ROOT / "fixtures" / "postmortem" / "matrix.json").read_text())["results"]
    assert to_markdown(results) in REPORT
    right = sum(result["is_right"] for result in results)
    assert f"{right} of {len(results)} are right ({100 * right / len(results):.1f} %)" in REPORT
    assert right >= 0.95 * len(results)
    for result in results:
        blamed = [] if result["fault"] == "clean" else [result["rank"]]
        assert result["is_right"] <= (result["blamed"] == blamed)


def test_the_matrices_on_nccl_are_those_of_their_raw_files() -> None:
    folder = ROOT / "fixtures" / "postmortem" / "nccl"
    first, again = (json.loads((folder / name).read_text())["results"] for name in ("matrix-first.json", "matrix.json"))
    for results in (first, again):
        right = sum(result["is_right"] for result in results)
        verb = "were" if results is first else "are"
        sentence = f"{right} of {len(results)} {verb} right ({100 * right / len(results):.1f} %)"
        assert to_markdown(results) in REPORT
        assert sentence in " ".join(REPORT.split())
    assert len(again) == 40
    assert sum(result["is_right"] for result in again) >= 0.95 * len(again)
    assert all(mine["rank"] != theirs["rank"] for mine, theirs in zip(first, again, strict=True))


def test_the_price_of_the_recorder_is_that_of_its_raw_file() -> None:
    cost = json.loads((ROOT / "fixtures" / "postmortem" / "nccl" / "recorder-cost.json").read_text())["us"]
    for recorder, values in cost.items():
        cells = [
            f"{mean(values[timing]):.2f} ± {stdev(values[timing]) / len(values[timing]) ** 0.5:.2f}" for timing in "01"
        ]
        assert f"| {recorder} | {cells[0]} | {cells[1]} |" in REPORT
