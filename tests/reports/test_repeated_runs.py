"""The statistics of repeated runs in a report are those of its raw files."""

from __future__ import annotations

import csv
from statistics import fmean, median

from tests.conftest import ROOT

RUNS = ROOT / "fixtures" / "published" / "mxnet_bert" / "runs_batch_32.csv"
REPORT = (ROOT / "reports" / "mxnet-bert-v100.md").read_text()


def test_means_medians_and_speed_ups_are_those_of_the_runs() -> None:
    speeds: dict[str, list[float]] = {}
    with RUNS.open(newline="") as file:
        for name, _, speed in list(csv.reader(file))[1:]:
            speeds.setdefault(name, []).append(float(speed))
    assert len(speeds) == 6
    for name, values in speeds.items():
        (row,) = (line for line in REPORT.splitlines() if line.startswith(f"| {name} "))
        cells = [cell.strip() for cell in row.strip("|").split("|")]
        assert int(cells[2]) == len(values)
        speed_up = median(values) / median(speeds["1n1g"])
        assert [float(cells[place]) for place in (3, 5, 7)] == [
            round(figure, 2) for figure in (fmean(values), median(values), speed_up)
        ]
        assert [float(cells[place]) for place in (4, 6, 8)] == [float(cells[place]) for place in (3, 5, 7)]
