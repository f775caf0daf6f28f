"""All rows of tables of many ranks go to files."""

from __future__ import annotations

import csv
import resource
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from benchmarks.synthetic_ranks import make_job
from perfscope.aggregation.tables import write_rows
from perfscope.constants import KIB
from perfscope.engine.analysis_report import to_report
from perfscope.errors import SourceError
from perfscope.report import Report
from tests.conftest import ROOT, perfscope
from tests.engine.many_ranks import analyze_job

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
