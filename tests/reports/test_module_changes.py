"""The predictions of the reports on modules and the roofline are those of the traces, and hold."""

from __future__ import annotations

import csv
import io

from benchmarks.module_changes import FOLDER, document


def test_the_table_of_changes_is_what_the_traces_say() -> None:
    assert (FOLDER / "changes.csv").read_text() == document()


def test_every_change_saved_what_was_predicted_but_never_more() -> None:
    rows = list(csv.DictReader(io.StringIO(document())))
    assert len(rows) == 5
    assert all(70 < float(row["Of the prediction (%)"]) < 100 for row in rows)
