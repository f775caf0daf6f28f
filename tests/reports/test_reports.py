"""What reports say follows from their raw files, and every promise is kept."""

from __future__ import annotations

import csv
import json
import re
from fractions import Fraction
from statistics import fmean, median
from typing import Any

import pytest

from benchmarks import log_excerpts, traces
from benchmarks.injected_faults import document, loop_document
from benchmarks.postmortem import to_markdown
from benchmarks.processes import best
from tests.conftest import ROOT

RAW = ROOT / "fixtures" / "benchmarks"
REPORT = ROOT / "reports" / "traces.md"


def figures(name: str) -> dict[str, Any]:
    content: dict[str, Any] = json.loads((RAW / name).read_text())
    return content


def tools() -> dict[str, dict[str, Any]]:
    return {tool["name"]: tool for tool in figures("traces.json")["tools"]}


def test_the_report_is_fresh() -> None:
    assert traces.document(figures("traces.json")) in REPORT.read_text()


@pytest.mark.parametrize("promise", traces.PROMISES, ids=lambda promise: promise[3])
def test_what_was_measured_keeps_what_is_promised(promise: tuple[str, str, str, str, float]) -> None:
    of, to, what, _, limit = promise
    one, other = best(tools()[of], what), best(tools()[to], what)
    assert one is not None
    assert other is not None
    assert one / other >= limit if limit > 0 else one / other <= -limit


FINDINGS = (ROOT / "reports" / "whole-loop.md").read_text()


def test_the_report_of_findings_is_fresh() -> None:
    assert document() in FINDINGS


def test_faults_of_the_loop_are_found_at_their_price_and_their_fix_is_seen() -> None:
    """At least 24 faults; their finding, price and fix are right in 95 %, and clean twins are silent."""
    table = loop_document()
    assert table in FINDINGS
    right, near, faster, silent = (tuple(map(int, pair)) for pair in re.findall(r"in (\d+) of (\d+)", table))
    assert right[1] >= 24
    assert all(Fraction(*pair) >= Fraction("0.95") for pair in (right, near, faster))
    assert silent[0] == silent[1]


def test_the_table_of_the_report_is_fresh() -> None:
    assert log_excerpts.document() in (ROOT / "reports" / "log-formats.md").read_text()


POSTMORTEM = (ROOT / "reports" / "postmortem.md").read_text()


def test_the_matrix_is_that_of_the_raw_file() -> None:
    results = json.loads((ROOT / "fixtures" / "postmortem" / "matrix.json").read_text())["results"]
    assert to_markdown(results) in POSTMORTEM
    right = sum(result["is_right"] for result in results)
    assert f"{right} of {len(results)} are right ({100 * right / len(results):.1f} %)" in POSTMORTEM
    assert right >= 0.95 * len(results)
    for result in results:
        blamed = [] if result["fault"] == "clean" else [result["rank"]]
        assert result["is_right"] <= (result["blamed"] == blamed)


def test_the_matrix_on_nccl_is_that_of_its_raw_file() -> None:
    results = json.loads((ROOT / "fixtures" / "postmortem" / "nccl" / "matrix.json").read_text())["results"]
    right = sum(result["is_right"] for result in results)
    assert to_markdown(results) in POSTMORTEM
    assert f"{right} of {len(results)} are right ({100 * right / len(results):.1f} %)" in " ".join(POSTMORTEM.split())
    assert right >= 0.95 * len(results) == 38


RUNS = ROOT / "fixtures" / "published" / "mxnet_bert" / "runs_batch_32.csv"
REPEATED_RUNS = (ROOT / "reports" / "mxnet-bert-v100.md").read_text()


def test_means_medians_and_speed_ups_are_those_of_the_runs() -> None:
    speeds: dict[str, list[float]] = {}
    with RUNS.open(newline="") as file:
        for name, _, speed in list(csv.reader(file))[1:]:
            speeds.setdefault(name, []).append(float(speed))
    assert len(speeds) == 6
    for name, values in speeds.items():
        (row,) = (line for line in REPEATED_RUNS.splitlines() if line.startswith(f"| {name} "))
        cells = [cell.strip() for cell in row.strip("|").split("|")]
        assert int(cells[2]) == len(values)
        speed_up = median(values) / median(speeds["1n1g"])
        assert [float(cells[place]) for place in (3, 5, 7)] == [
            round(figure, 2) for figure in (fmean(values), median(values), speed_up)
        ]
        assert [float(cells[place]) for place in (4, 6, 8)] == [float(cells[place]) for place in (3, 5, 7)]
