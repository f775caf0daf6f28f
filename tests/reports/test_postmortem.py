"""The matrix of post-mortems in the report is that of its raw file, and holds what it promises."""

from __future__ import annotations

import json

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


def test_the_matrix_on_nccl_is_that_of_its_raw_file() -> None:
    results = json.loads((ROOT / "fixtures" / "postmortem" / "nccl" / "matrix.json").read_text())["results"]
    right = sum(result["is_right"] for result in results)
    assert to_markdown(results) in REPORT
    assert f"{right} of {len(results)} are right ({100 * right / len(results):.1f} %)" in " ".join(REPORT.split())
    assert right >= 0.95 * len(results) == 38
