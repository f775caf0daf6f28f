"""The report on log formats follows from the published lines and the recorded counts, and keeps what is promised."""

from __future__ import annotations

import json

from benchmarks import log_excerpts, published_tables
from tests.conftest import ROOT

REPORT = (ROOT / "reports" / "log-formats.md").read_text()
RAW = json.loads((ROOT / "fixtures" / "benchmarks" / "published-tables.json").read_text())
FEWEST_REPOSITORIES = 50


def test_the_tables_of_the_report_are_fresh() -> None:
    assert log_excerpts.document() in REPORT
    assert published_tables.document(RAW) in REPORT


def test_another_verdict_makes_it_stale() -> None:
    changed = {**RAW, "repositories": [{**row, "flagged": row["flagged"] + 1} for row in RAW["repositories"]]}
    assert published_tables.document(changed) not in REPORT


def test_no_flag_on_published_tables_is_false() -> None:
    rows = RAW["repositories"]
    assert len(rows) >= FEWEST_REPOSITORIES
    assert sum(row["files"] for row in rows) > 3000
    assert [row["false"] for row in rows] == [0] * len(rows)


def test_every_flag_has_a_commit_to_look_it_up() -> None:
    assert all(len(row["commit"]) == 7 and "/" in row["repository"] for row in RAW["repositories"])
