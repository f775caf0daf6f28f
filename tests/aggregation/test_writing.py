"""All rows go to files, and the JSON of many ranks keeps its keys: with the entries that stand out."""

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
from perfscope.aggregation.writing import write_rows
from perfscope.constants import KIB, MB
from perfscope.engine.analysis_report import to_report
from perfscope.errors import SourceError
from perfscope.page import build_page
from perfscope.renderers import Format, render
from perfscope.report import Report
from tests.api.test_schema import differences, types
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


@pytest.fixture(scope="module")
def document(written: Report) -> Any:
    return as_json(written)


def as_json(report: Report) -> Any:
    return json.loads(render(report, Format.JSON))


def read_rows(path: Path) -> list[dict[str, str]]:
    with path.open(newline="") as file:
        return list(csv.DictReader(file))


def look_up(document: Any, pointer: str) -> Any:
    for part in pointer.split("/")[1:]:
        document = document[int(part)] if isinstance(document, list) else document[part]
    return document


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


def test_json_keeps_its_keys_and_types(document: Any, whole: Any) -> None:
    assert document["results"].keys() == whole["results"].keys()
    for name, data in document["results"].items():
        assert not list(differences(data, types()[name], name))
    assert len(json.dumps(document)) < len(json.dumps(whole)) / 4


def test_aggregated_says_what_each_list_was(document: Any, whole: Any) -> None:
    lists = document["aggregated"]
    assert {"/results/breakdown/ranks", "/results/idle/ranks", "/results/clock/ranks"} <= lists.keys()
    for pointer, told in lists.items():
        assert told["shown"] == len(look_up(document, pointer))
        if pointer.count("/") == 3:
            assert told["entries"] == len(look_up(whole, pointer)) == RANKS
            assert Path(told["file"]).is_file()
    ranks = whole["results"]["breakdown"]["ranks"]
    times = sorted(entry["marked"]["idle_us"] for entry in ranks)
    quantiles = lists["/results/breakdown/ranks"]["quantiles"]["marked_idle_us"]
    assert (quantiles["smallest"], quantiles["median"], quantiles["largest"]) == (times[0], times[511], times[-1])


def test_entries_that_stay_are_whole(document: Any, whole: Any) -> None:
    for pointer in ("/results/breakdown/ranks", "/results/idle/ranks", "/results/stragglers/ranks"):
        entries = look_up(whole, pointer)
        assert all(entry in entries for entry in look_up(document, pointer))
    assert document["results"]["breakdown"]["all"] == whole["results"]["breakdown"]["all"]


def test_pointers_of_findings_lead_to_the_same_figures(document: Any, whole: Any) -> None:
    pairs = [
        (before, after)
        for old, new in zip(whole["results"]["findings"], document["results"]["findings"], strict=True)
        for first, second in zip(old["evidence"], new["evidence"], strict=True)
        for before, after in zip(first["pointers"], second["pointers"], strict=True)
    ]
    assert any(before != after for before, after in pairs)
    for before, after in pairs:
        assert look_up(whole, before) == look_up(document, after)


def test_few_ranks_get_files_and_the_answer_of_ever(tmp_path: Path) -> None:
    words = ["analyze", "--format", "json", str(TRACES)]
    plain = perfscope(*words, cwd=tmp_path)
    with_rows = perfscope(*words, "--rows", "rows", cwd=tmp_path)
    assert (with_rows.code, with_rows.stdout) == (plain.code, plain.stdout)
    rows = read_rows(tmp_path / "rows" / "device-time.csv")
    assert [row["Rank"] for row in rows] == ["0", "1", "all"]


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


def test_pages_show_aggregated_tables() -> None:
    page = build_page(analyze_job(make_job(520, stragglers=2)))
    assert "520 rows of 520 ranks, told by quantiles" in page
    assert len(page) < MB
