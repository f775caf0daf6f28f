"""The report of the coverage of scaling laws follows from its figures, and what it shows is what is promised."""

from __future__ import annotations

import json
from typing import Any

from benchmarks import scaling_coverage


def figures() -> dict[str, Any]:
    content: dict[str, Any] = json.loads(scaling_coverage.FIGURES.read_text())
    return content


def test_the_report_is_fresh() -> None:
    assert scaling_coverage.describe(figures()) == scaling_coverage.REPORT.read_text()


def test_the_published_series_are_measured_anew() -> None:
    assert figures()["published"] == scaling_coverage.predict_all_published()


def test_a_simulated_study_is_measured_anew() -> None:
    """The same draws give the same figures; half of a minute would measure all."""
    recorded = figures()["simulated"]
    row = next(row for row in recorded if row["law"] == "amdahl" and row["configuration_error"] == 0.03)
    kind = (row["law"], row["configurations"], row["repeats"], row["configuration_error"])
    assert scaling_coverage.simulate(*kind, row["studies"]) == row


def test_intervals_hold_the_truth_as_often_as_they_say() -> None:
    for row in figures()["simulated"]:
        assert row["parameters"] >= 0.92, row
        assert row["prediction"] is None or row["prediction"] >= 0.92, row
    for row in figures()["published"]:
        assert row["prediction"] is None or row["prediction"] >= 0.9, row


def test_series_of_others_are_predicted_as_well() -> None:
    """They were collected after the laws were made."""
    rows = [row for row in figures()["published"] if row["pages"] == "others" and row["law"] != "usl"]
    assert {row["later"] for row in rows} == {False, True}
    assert all(row["cannot_tell"] < 0.5 and row["prediction"] >= 0.9 for row in rows)


def test_an_answer_is_given_more_often_than_not_where_configurations_differ_by_three_percent() -> None:
    rows = [row for row in figures()["simulated"] if row["configuration_error"] <= 0.03 and row["law"] != "usl"]
    assert all(row["cannot_tell"] < 0.2 for row in rows)
