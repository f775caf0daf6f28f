"""``report table`` in a block of a report: published tables, recomputed."""

from __future__ import annotations

from pathlib import Path

import pytest
import typer

from perfscope.commands.report import app
from perfscope.errors import PerfscopeError
from perfscope.regenerate.published import CheckedCell, check_tables
from perfscope.regenerate.refresh import ADDED_COLUMNS
from perfscope.renderers.markdown import render
from perfscope.report import Report
from perfscope.sources.published.tables import read_published
from perfscope.tables.published import Constant, Quantity
from tests.conftest import ROOT

PUBLISHED = ROOT / "fixtures" / "published"
HEADINGS = {column.heading for column in ADDED_COLUMNS.values()}


def answer(*arguments: object) -> Report:
    report = typer.main.get_group(app).main(["table", *map(str, arguments)], standalone_mode=False).report
    assert isinstance(report, Report)
    return report


def added(file: str, *names: str) -> list[tuple[object, ...]]:
    """The rows of a file with added columns: the second cell, and what was added."""
    options = [word for name in names for word in ("--add", name)]
    [section] = answer(PUBLISHED / file, *options).sections
    width = next(place for place, column in enumerate(section.columns) if column.heading in HEADINGS)
    return [(row[1], *row[width : width + len(names)]) for row in section.rows]


def cells(path: Path, **constants: Constant) -> tuple[CheckedCell, ...]:
    return check_tables(read_published(path, {Quantity[name]: value for name, value in constants.items()}).tables).cells


def test_every_published_tflops_is_recomputed_by_the_reports_own_formula() -> None:
    """Against the formula in floating point, read from the raw files by a few lines of their own."""
    import csv

    expected: dict[tuple[str, int], float] = {}
    folder = PUBLISHED / "bigscience_gpt2"
    for path in sorted(folder.glob("*.csv")):
        with path.open() as file:
            for line, row in enumerate(csv.DictReader(file), 2):
                if row.get("TFLOPs"):
                    seconds = float(row["Time"].rstrip("s"))
                    size, batch, gpus = float(row["Size"].rstrip("B")), int(row["GBS"]), int(row["GPUs"])
                    expected[path.name, line] = size * 4 * 2 * 1024 * batch / (seconds * gpus * 1e3)
    found = {
        (name, cell.line): float(cell.recomputed)
        for name in {name for name, _ in expected}
        for cell in cells(folder / name, SEQ_LEN=Constant(1024, "--seq-len"), PASSES=Constant(4, "--checkpointing"))
    }
    assert len(expected) == 94
    assert found == pytest.approx(expected, rel=1e-12)


def test_the_wrong_cells_of_each_report_are_named() -> None:
    wrong = {
        folder: [
            (cell.published, cell.text, cell.verdict)
            for path in sorted((PUBLISHED / folder).glob(pattern))
            for cell in cells(path)
            if cell.verdict != "rounded"
        ]
        for folder, pattern in (
            ("bigscience_gpt2", "[!s]*.csv"),
            ("deepspeed_gpt2", "*.csv"),
            ("mxnet_bert", "fp*.csv"),
        )
    }
    assert wrong == {
        "bigscience_gpt2": [
            ("46.7", "49.7", "wrong"),
            ("48.8", "49.7", "wrong"),
            ("49.1", "49.2", "truncated"),
            ("49.1", "49.2", "truncated"),
            ("14.0", "14.1", "from unrounded inputs"),
            ("38.3", "43.1", "wrong"),
        ],
        "deepspeed_gpt2": [("5.3", "5.1", "wrong")],
        "mxnet_bert": [("27.33", "27.23", "wrong")],
    }


def test_speed_up_and_efficiency_are_added_against_one_gpu() -> None:
    rows = added("resnet50_mnist/throughput.csv", "speed-up", "efficiency")
    assert rows[0] == ("V100", "1.00", "100.0")
    assert rows[8] == ("1 V100 x 4 node", "2.65", "66.3")  # 880 / 332 / 4
    assert rows[18] == ("2 V100 x 4 node", "1.44", "18.0")  # 477 / 332 / 8


@pytest.mark.parametrize(
    ("file", "name", "expected"),
    [
        # 125e6 x 6 x 2.5e9 / (8 h), 1.3e9 x 8 x 26e9 / (4 GPUs x 8 days); the others state no time
        ("megatron_deepspeed_gpt/sizes.csv", "tflops", ["65.1", "97.8", None, None]),
        # 14 bytes x size / time
        (
            "bigscience_gpt2/save_checkpoint.csv",
            "save-speed",
            ["19.5", "37.7", "37.9", "37.0", "69.9", "117.8", "130.0"],
        ),
        ("mxnet_bert/memory.csv", "memory-share", ["63.8", "86.8", "92.6", None]),  # of 16,160 MiB; the last is OOM
    ],
)
def test_what_follows_from_the_other_columns_is_added(file: str, name: str, expected: list[str | None]) -> None:
    assert [row[1] for row in added(file, name)] == expected


@pytest.mark.parametrize(
    ("content", "problem"),
    [
        ("GPUs,Samples/s,Speed-up\n1,nan,1\n2,inf,2\n4,1.2.3,3\n", "'1.2.3' is not a valid samples/s"),
        ("GPUs,Samples/s,Speed-up\n1,100\n4,300,3\n", "the row ends before this column"),
        ("GPUs,Speed-up\n1,1\n4,3\n", "no column states the samples/s"),
    ],
)
def test_cells_that_cannot_be_read_are_named(tmp_path: Path, content: str, problem: str) -> None:
    (tmp_path / "raw.csv").write_text(content)
    assert problem in render(answer(tmp_path / "raw.csv"))


@pytest.mark.parametrize(
    ("content", "options", "problem"),
    [
        ("", (), "is empty"),
        ("a,b\n1,2\n", (), "contains no table that can be recomputed"),
        ("GPUs,Speed-up\n1,1\n4,3\n", ("--add", "wishes"), "'wishes' cannot be added"),
    ],
)
def test_bad_tables_are_one_clear_line(tmp_path: Path, content: str, options: tuple[str, ...], problem: str) -> None:
    (tmp_path / "raw.csv").write_text(content)
    with pytest.raises(PerfscopeError, match=problem):
        answer(tmp_path / "raw.csv", *options)
