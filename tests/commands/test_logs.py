"""``perfscope logs`` as a person types it."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest

from tests.commands.report_cli import Run, run_in
from tests.conftest import ROOT, run
from tests.sources.joblog.lines import megatron

FIXTURES = ROOT / "fixtures" / "logs"


def logs(folder: Path, *arguments: str | Path) -> Run:
    return run_in(folder, "logs", *arguments)


def as_json(folder: Path, *arguments: str | Path) -> Any:
    ended = logs(folder, *arguments, "--format", "json")
    assert ended.code == 0, ended.err
    return ended.data


@pytest.fixture
def sweep(tmp_path: Path) -> Path:
    """Three runs of the seed's kind, one of which failed."""
    times = {"61B-megatron-mbs-2-pp16-dp-1-gas-512-200977": 144, "55B-megatron-mbs-2-pp16-dp-1-gas-512-200968": 134}
    for name, seconds in times.items():
        (tmp_path / f"{name}.out").write_text("".join(megatron(n, f"{seconds * 1000}.0") for n in range(1, 6)))
    (tmp_path / "61B-megatron-mbs-4-pp8-dp-2-gas-128-200980.out").write_text(
        "RuntimeError: CUDA out of memory. Tried\n"
    )
    (tmp_path / "script.sh").write_text("sbatch\n")
    return tmp_path


def test_a_folder_of_runs_is_a_table_with_its_failures(sweep: Path) -> None:
    document = as_json(sweep, ".")
    assert document["schema"] == "perfscope/logs/1"
    rows = {row["path"]: row for row in document["logs"]}
    assert sorted(row["status"] for row in document["logs"]) == ["fail", "ok", "ok"]
    best = max(document["logs"], key=lambda row: row["tflops_per_gpu"] or 0)
    assert best["path"].startswith("61B-megatron-mbs-2")
    assert best["tflops_per_gpu"] == pytest.approx(55.5, abs=0.05)
    assert best["median_s"] == best["mean_s"] == best["p95_s"] == 144.0
    failed = rows["61B-megatron-mbs-4-pp8-dp-2-gas-128-200980.out"]
    assert failed["oom"] == "device"
    assert (failed["size"], failed["pp"], failed["dp"], failed["gas"], failed["mbs"]) == ("61B", 8, 2, 128, 4)
    assert failed["iterations"] == 0
    assert failed["median_s"] is None


def test_the_table_says_what_it_assumed_and_left_out(sweep: Path) -> None:
    ended = logs(sweep, ".")
    assert ended.code == 0
    assert "64 GPUs (--gpus)" in ended.out
    assert "2 warm-up records at the starts of runs are excluded" in ended.out
    assert "fail, no iteration was logged: the device ran out of memory" in ended.out


@pytest.mark.parametrize(
    ("content", "problem"),
    [
        (b"", "is empty"),
        (b"dear diary\n", "is not a log of a known framework"),
        (bytes(range(256)) * 40, "is a binary file"),
    ],
)
def test_one_bad_file_is_one_clear_line(tmp_path: Path, content: bytes, problem: str) -> None:
    (tmp_path / "a.log").write_bytes(content)
    ended = logs(tmp_path, "a.log")
    assert ended.code == 1
    assert problem in ended.err
    assert ended.out == ""
    assert "Traceback" not in ended.err


def test_a_bad_file_among_good_ones_is_noted(sweep: Path) -> None:
    (sweep / "notes.txt").write_text("dear diary\n")
    ended = logs(sweep, ".", "--format", "json")
    assert ended.code == 4
    assert ended.data["unread"] == ["notes.txt is not a log of a known framework"]
    assert "notes.txt" in ended.err


def test_too_high_a_figure_is_doubted(sweep: Path) -> None:
    ended = logs(sweep, ".", "--gpus", "1")
    assert "there is a bug in the calculation" in ended.err


@pytest.mark.parametrize("arguments", [[".", "--gpus", "0"], [".", "--warmup", "-1"], [".", "--size", "52Q"], []])
def test_wrong_usage_is_2(sweep: Path, arguments: list[str]) -> None:
    assert logs(sweep, *arguments).code == 2


def test_an_empty_folder_is_named(tmp_path: Path) -> None:
    ended = logs(tmp_path, ".")
    assert ended.code == 1
    assert "there is no log in ." in ended.err


def test_every_example_of_the_guide_runs(sweep: Path) -> None:
    guide = (ROOT / "docs" / "logs.md").read_text()
    examples = [line.strip() for line in guide.splitlines() if line.startswith("    perfscope ")]
    (sweep / "runs").mkdir()
    (sweep / "runs" / "a.log").write_text(megatron(1, 100.0))
    (sweep / "run.log").write_text("".join(megatron(n, 100.0) for n in range(1, 99)))
    assert len(examples) == 3
    for example in examples:
        ended = run(["bash", "-c", example.replace("perfscope", f"{sys.executable} -m perfscope", 1)], sweep)
        assert ended.code == 0, ended.stderr
