"""`perfscope report table` and `runs`: the commands of published tables behind a report's blocks."""

from __future__ import annotations

import statistics
from pathlib import Path
from typing import Any

import pytest

from tests.commands.report_cli import run
from tests.conftest import ROOT

PUBLISHED = ROOT / "fixtures" / "published"


def cells(capsys: pytest.CaptureFixture[str], *arguments: object) -> list[dict[str, Any]]:
    answer = run(capsys, "report", "table", *arguments, "--format", "json")
    assert answer.code == 0, answer.err
    return [cell for table in answer.data["results"]["tables"] for cell in table["cells"]]


def test_every_published_tflops_is_recomputed_by_the_reports_own_formula(capsys: pytest.CaptureFixture[str]) -> None:
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
    files = sorted({name for name, _ in expected})
    found: dict[tuple[str, int], float] = {}
    for name in files:
        for cell in cells(capsys, folder / name, "--seq-len", "1024", "--checkpointing", "full"):
            found[name, cell["line"]] = cell["recomputed"]
    assert len(expected) == 94
    assert found == pytest.approx(expected, rel=1e-12)


def test_the_wrong_cells_of_each_report_are_named(capsys: pytest.CaptureFixture[str]) -> None:
    wrong = {
        folder: [
            (cell["published"], cell["text"], cell["verdict"])
            for cell in cells(capsys, *sorted(path for path in (PUBLISHED / folder).glob(pattern)))
            if cell["verdict"] != "rounded"
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


def test_medians_means_and_speed_ups_of_repeated_runs(capsys: pytest.CaptureFixture[str]) -> None:
    folder = PUBLISHED / "mxnet_bert"
    answer = run(
        capsys,
        "report",
        "runs",
        folder / "runs_batch_32.csv",
        "--published",
        folder / "published_batch_32.csv",
        "--format",
        "json",
    )
    found = answer.data["results"]["runs"]
    speeds: dict[str, list[float]] = {}
    for line in (folder / "runs_batch_32.csv").read_text().splitlines()[1:]:
        name, _, speed = line.split(",")
        speeds.setdefault(name, []).append(float(speed))
    assert {name: entry["median"] for name, entry in found.items()} == {
        name: pytest.approx(statistics.median(values)) for name, values in speeds.items()
    }
    assert {name: entry["mean"] for name, entry in found.items()} == {
        name: pytest.approx(statistics.fmean(values)) for name, values in speeds.items()
    }
    assert found["4n8g"]["speed-up"] == pytest.approx(3671.45 / 150.11)
    assert {verdict for entry in found.values() for verdict in entry["verdicts"].values()} == {"rounded"}
    assert found["2n8g"]["runs"] == 6
    assert "2n8g has 6" in run(capsys, "report", "runs", folder / "runs_batch_32.csv").out


def test_speed_up_and_efficiency_are_added_against_one_gpu(capsys: pytest.CaptureFixture[str]) -> None:
    answer = run(
        capsys,
        "report",
        "table",
        PUBLISHED / "resnet50_mnist/throughput.csv",
        "--add",
        "speed-up",
        "--add",
        "efficiency",
        "--format",
        "json",
    )
    rows = {row["line"]: (row["cells"][1], row["added"]) for row in answer.data["results"]["tables"][0]["rows"]}
    assert rows[2] == ("V100", {"speed-up": "1.00", "efficiency": "100.0"})
    assert rows[10] == ("1 V100 x 4 node", {"speed-up": "2.65", "efficiency": "66.3"})  # 880 / 332 / 4
    assert rows[20] == ("2 V100 x 4 node", {"speed-up": "1.44", "efficiency": "18.0"})  # 477 / 332 / 8


def test_what_planned_training_times_imply(capsys: pytest.CaptureFixture[str]) -> None:
    path = PUBLISHED / "megatron_deepspeed_gpt/sizes.csv"
    answer = run(capsys, "report", "table", path, "--add", "tflops", "--format", "json")
    added = [row["added"]["tflops"] for row in answer.data["results"]["tables"][0]["rows"]]
    # 125e6 x 6 x 2.5e9 / (8 h), 1.3e9 x 8 x 26e9 / (4 GPUs x 8 days); the others state no time
    assert added == ["65.1", "97.8", None, None]


def test_the_speed_of_saves_and_the_share_of_memory(capsys: pytest.CaptureFixture[str]) -> None:
    saves = run(
        capsys,
        "report",
        "table",
        PUBLISHED / "bigscience_gpt2/save_checkpoint.csv",
        "--add",
        "save-speed",
        "--format",
        "json",
    )
    added = [row["added"]["save-speed"] for row in saves.data["results"]["tables"][0]["rows"]]
    assert added == ["19.5", "37.7", "37.9", "37.0", "69.9", "117.8", "130.0"]  # 14 bytes x size / time
    memory = run(
        capsys, "report", "table", PUBLISHED / "mxnet_bert/memory.csv", "--add", "memory-share", "--format", "json"
    )
    shares = [row["added"]["memory-share"] for row in memory.data["results"]["tables"][0]["rows"]]
    assert shares == ["63.8", "86.8", "92.6", None]  # of 16,160 MiB; the last is OOM


@pytest.mark.parametrize(
    ("content", "options", "code", "problem"),
    [
        ("", (), 1, "is empty"),
        ("a,b\n1,2\n", (), 1, "contains no table that can be recomputed"),
        ("GPUs,Samples/s,Speed-up\n1,nan,1\n2,inf,2\n4,1.2.3,3\n", (), 0, "'1.2.3' is not a valid rate"),
        ("GPUs,Samples/s,Speed-up\n1,100\n4,300,3\n", (), 0, "the row ends before this column"),
        ("GPUs,Speed-up\n1,1\n4,3\n", ("--add", "wishes"), 2, "'wishes' cannot be added"),
        ("GPUs,Speed-up\n1,1\n4,3\n", (), 0, "no column states the samples/s"),
    ],
)
def test_bad_tables_are_one_clear_line(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], content: str, options: tuple[str, ...], code: int, problem: str
) -> None:
    (tmp_path / "raw.csv").write_text(content)
    answer = run(capsys, "report", "table", tmp_path / "raw.csv", *options)
    assert answer.code == code
    assert problem in answer.out + answer.err
    assert "Traceback" not in answer.err
