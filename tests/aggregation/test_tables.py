"""A table of many ranks tells what a slow oracle finds in all of its rows; rows that are shown are never changed."""

from __future__ import annotations

import csv
import resource
from collections.abc import Iterator
from contextlib import contextmanager
from fractions import Fraction
from pathlib import Path

import numpy as np
import pytest

from benchmarks.synthetic_ranks import make_job
from perfscope.aggregation.tables import ALL_ROWS, QUANTILES, Grouping, aggregate, write_rows
from perfscope.constants import KIB, MANY_RANKS
from perfscope.engine.analysis_report import to_report
from perfscope.errors import SourceError
from perfscope.report import Cell, Column, Report, Row, Section
from tests.conftest import ROOT, perfscope
from tests.engine.test_many_ranks import analyze_job

COLUMNS = (Column("Rank"), Column("Steps"), Column("Time (ms)", 2), Column("Calls"))
COUNT = MANY_RANKS + 100
SIDES = Grouping("side", {rank: "left" if rank % 2 else "right" for rank in range(COUNT)})


def many_rows(seed: int, count: int = COUNT) -> list[Row]:
    random = np.random.default_rng(seed)
    times: list[Cell] = random.normal(100, 1, count).tolist()
    calls: list[Cell] = random.integers(5, 9, count).tolist()
    times[17], calls[40], times[3], calls[3] = 150.0, 300, None, None
    return [(str(rank), "1-3", times[rank], calls[rank]) for rank in range(count)]


def made(rows: list[Row]) -> Section:
    total = ("all", None, sum(row[2] or 0 for row in rows), sum(row[3] or 0 for row in rows))  # type: ignore[misc]
    return Section("Times", COLUMNS, (*rows, total), ("A note.",))


def slow_quantile(cells: list[Cell], share: float) -> Cell:
    """The smallest value that at least that share of the values does not exceed."""
    present = sorted(cell for cell in cells if cell is not None)
    exact = Fraction(str(share))
    for value in present:
        if Fraction(sum(other <= value for other in present), len(present)) >= exact:  # type: ignore[operator]
            return value
    raise AssertionError


@pytest.mark.parametrize("seed", range(3))
def test_quantiles_equal_a_slow_oracle(seed: int) -> None:
    rows = many_rows(seed)
    by_label = {row[0]: row for row in aggregate(made(rows)).rows}
    for name, share in QUANTILES:
        for column in (2, 3):
            assert by_label[name][column] == slow_quantile([row[column] for row in rows], share), (name, column)
        assert by_label[name][1] == "1-3"


def test_the_worst_rows_are_shown_as_they_are() -> None:
    rows = many_rows(1)
    shown = [row for row in aggregate(made(rows)).rows if str(row[0]).isdigit()]
    assert set(shown) <= set(rows)
    for column in (2, 3):
        present = [row for row in rows if row[column] is not None]
        cells = [row[column] for row in shown]
        assert max(row[column] for row in present) in cells  # type: ignore[type-var]
        assert min(row[column] for row in present) in cells  # type: ignore[type-var]
    assert {"17", "40"} <= {row[0] for row in shown}


def test_groups_equal_a_slow_oracle() -> None:
    rows = many_rows(2)
    shown = {row[0]: row for row in aggregate(made(rows), [SIDES]).rows}
    for label in ("left", "right"):
        members = [row for row in rows if SIDES.label_of[int(str(row[0]))] == label]
        row = shown[f"side {label}: median of {len(members)}"]
        assert row[2] == slow_quantile([member[2] for member in members], 0.5)
        assert row[3] == slow_quantile([member[3] for member in members], 0.5)


def test_nothing_is_cut_silently() -> None:
    rows = many_rows(1)
    section = aggregate(made(rows))
    assert section.notes[0] == "A note."
    assert section.notes[-1].startswith(f"{COUNT} rows of {COUNT} ranks")
    assert "all 2 that are more than 8 standard deviations" in section.notes[-1]
    assert section.notes[-1].endswith(ALL_ROWS)
    assert section.every == made(rows).rows


def test_few_ranks_and_tables_of_something_else_stay_as_they_are() -> None:
    few = made(many_rows(1, MANY_RANKS))
    assert aggregate(few) is few
    kernels = Section("Kernels", (Column("Name"), *COLUMNS[1:]), made(many_rows(1)).rows)
    assert aggregate(kernels) is kernels
    steps = Section("Steps", COLUMNS, tuple((str(number % 8), "1", 1.0, 1) for number in range(5000)))
    assert aggregate(steps) is steps


RANKS = 1024
TRACES = ROOT / "fixtures" / "traces" / "ddp4"


@pytest.fixture(scope="module")
def report() -> Report:
    return to_report(analyze_job(make_job(RANKS, stragglers=6)))


@pytest.fixture(scope="module")
def written(report: Report, tmp_path_factory: pytest.TempPathFactory) -> Report:
    return write_rows(report, tmp_path_factory.mktemp("rows"))


def test_every_aggregated_table_names_a_file_with_all_its_rows(written: Report) -> None:
    aggregated = [section for section in written.sections if section.is_aggregated]
    assert {"Device time", "Device time by step", "Stragglers", "Clocks"} <= {section.title for section in aggregated}
    for section in aggregated:
        path = Path(section.notes[-1].rpartition("All rows: ")[2].removesuffix("."))
        with path.open(newline="") as file:
            rows = list(csv.reader(file))
        assert rows[0] == [column.heading for column in section.columns]
        assert rows[1:] == [["" if cell is None else str(cell) for cell in row] for row in section.every]


def test_a_folder_that_cannot_be_made_is_told(tmp_path: Path) -> None:
    (tmp_path / "rows").write_text("a file")
    answer = perfscope("analyze", str(TRACES), "--rows", "rows", cwd=tmp_path)
    assert answer.code != 0
    assert "rows cannot be made" in answer.stderr
    assert "Traceback" not in answer.stderr


@contextmanager
def largest_file(size: int) -> Iterator[None]:
    """Whatever is larger can be written in part alone, as on a full disk."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)


def test_a_disk_that_fills_is_told_and_leaves_no_half_file(report: Report, tmp_path: Path) -> None:
    complete, cut = tmp_path / "complete", tmp_path / "cut"
    write_rows(report, complete)
    with largest_file(150 * KIB), pytest.raises(SourceError, match="cannot be written"):
        write_rows(report, cut)
    names = [path.name for path in cut.iterdir()]
    assert 0 < len(names) < len(list(complete.iterdir()))
    for name in names:
        assert (cut / name).read_bytes() == (complete / name).read_bytes()
    write_rows(report, cut)
    assert {path.name: path.read_bytes() for path in cut.iterdir()} == {
        path.name: path.read_bytes() for path in complete.iterdir()
    }
