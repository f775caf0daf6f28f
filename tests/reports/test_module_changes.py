"""The predictions of the reports on modules and the roofline are those of the traces, and hold."""

from __future__ import annotations

import csv
import io

import pytest

from benchmarks.module_changes import FOLDER, document
from tests.conftest import ROOT


def test_the_table_of_changes_is_what_the_traces_say() -> None:
    assert (FOLDER / "changes.csv").read_text() == document()


@pytest.mark.parametrize(
    ("report", "name"), [("h200-modules", "changes"), ("h200-roofline", "changes"), ("h200-roofline", "ncu")]
)
def test_the_reports_show_the_tables(report: str, name: str) -> None:
    text = (ROOT / "reports" / f"{report}.md").read_text()
    for row in csv.reader((FOLDER / f"{name}.csv").read_text().splitlines()):
        assert f"| {' | '.join(row)} |" in text


def test_every_change_saved_what_was_predicted_but_never_more() -> None:
    rows = list(csv.DictReader(io.StringIO(document())))
    assert len(rows) == 5
    assert all(70 < float(row["Of the prediction (%)"]) < 100 for row in rows)
