"""All rows of tables of many ranks go to files, as do the long lists of the JSON."""

from __future__ import annotations

import csv
import json
import resource
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from benchmarks.synthetic_ranks import make_job
from perfscope.aggregation.writing import list_tables, write_rows
from perfscope.constants import KIB
from perfscope.engine.analysis_report import to_report
from perfscope.errors import SourceError
from perfscope.renderers import Format, render
from perfscope.report import Json, Report
from tests.conftest import ROOT, perfscope
from tests.engine.many_ranks import analyze_job

RANKS = 1024
TRACES = ROOT / "fixtures" / "traces" / "ddp4"


@pytest.fixture(scope="module")
def report() -> Report:
    return to_report(analyze_job(make_job(RANKS, stragglers=6)))


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("rows")


@pytest.fixture(scope="module")
def written(report: Report, folder: Path) -> Report:
    return write_rows(report, folder)


@pytest.fixture(scope="module")
def whole(report: Report) -> Any:
    return as_json(report)


def as_json(report: Report) -> Any:
    return json.loads(render(report, Format.JSON))


def read_rows(path: Path) -> list[dict[str, str]]:
    with path.open(newline="") as file:
        return list(csv.DictReader(file))


def test_every_aggregated_table_names_a_file_with_all_its_rows(written: Report) -> None:
    aggregated = [section for section in written.sections if section.is_aggregated]
    assert {"Device time", "Device time by step", "Stragglers", "Clocks"} <= {section.title for section in aggregated}
    for section in aggregated:
        path = Path(section.notes[-1].rpartition("All rows: ")[2].removesuffix("."))
        with path.open(newline="") as file:
            rows = list(csv.reader(file))
        assert rows[0] == [column.heading for column in section.columns]
        assert rows[1:] == [["" if cell is None else str(cell) for cell in row] for row in section.every]


@pytest.mark.usefixtures("written")
def test_entries_of_json_are_all_in_files(whole: Any, folder: Path) -> None:
    rows = read_rows(folder / "breakdown.ranks.csv")
    entries = whole["results"]["breakdown"]["ranks"]
    assert [int(row["rank"]) for row in rows] == [entry["rank"] for entry in entries]
    assert [float(row["marked_idle_us"]) for row in rows] == [entry["marked"]["idle_us"] for entry in entries]
    steps = read_rows(folder / "breakdown.ranks.steps.csv")
    assert [(int(row["rank"]), float(row["idle_us"])) for row in steps] == [
        (entry["rank"], step["idle_us"]) for entry in entries for step in entry["steps"]
    ]


def test_a_folder_that_cannot_be_made_is_told(tmp_path: Path) -> None:
    (tmp_path / "rows").write_text("a file")
    answer = perfscope("analyze", str(TRACES), "--rows", "rows", cwd=tmp_path)
    assert answer.code != 0
    assert "rows cannot be made" in answer.stderr
    assert "Traceback" not in answer.stderr


def test_tables_have_a_cell_for_every_key_of_any_entry() -> None:
    def entry_of(rank: int) -> dict[str, Json]:
        late = {"late_us": rank / 3} if rank % 2 else {}
        steps: list[Json] = [{"name": f"step {step}", "us": float(step * rank)} for step in range(rank % 3)]
        return {"rank": rank, "calls": rank % 7, **late, "mixed": {"x": rank}, "steps": steps}

    tables = dict(list_tables({"a": {"ranks": [entry_of(rank) for rank in range(2000)]}}))
    assert list(dict.fromkeys(key for row in tables["a.ranks"] for key in row)) == [
        "rank", "calls", "mixed_x", "steps", "late_us",
    ]  # fmt: skip
    assert len(tables["a.ranks.steps"]) == sum(rank % 3 for rank in range(2000))


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
