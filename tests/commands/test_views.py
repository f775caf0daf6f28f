"""``perfscope analyze --only``: late ranks, the goodput of a job, the memory of a run or of snapshots."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import pytest

from perfscope.errors import ExitCode
from tests.commands.report_cli import Run, run
from tests.conftest import ROOT

LATE = ROOT / "fixtures" / "stragglers" / "ddp.garbage"
KILLED = ROOT / "fixtures" / "goodput" / "killed"
MEMORY = ROOT / "fixtures" / "memory"
Capture = pytest.CaptureFixture[str]


def show(capsys: Capture, only: str, *paths: object) -> Run:
    return run(capsys, "analyze", *paths, "--only", only)


def result(capsys: Capture, only: str, *paths: object) -> Any:
    return run(capsys, "analyze", *paths, "--only", only, "--format", "json").data["results"][only]


@pytest.fixture
def profiled(tmp_path: Path) -> Path:
    """A run with the history of one rank."""
    folder = tmp_path / "run"
    (folder / "memory").mkdir(parents=True)
    (folder / "run.json").write_text("{}")
    shutil.copy(MEMORY / "pure.memory.jsonl.gz", folder / "memory" / "vm_1.1.memory.jsonl.gz")
    return folder


def test_the_late_rank_stands_in_the_title_and_in_json(capsys: Capture) -> None:
    answer = show(capsys, "late_ranks", LATE)
    assert answer.code == 0
    assert answer.out.startswith("# Rank 1 is late in most steps: Python collected garbage\n")
    data = result(capsys, "late_ranks", LATE)
    first = data["late"][0]
    assert (first["rank"], first["cause"], first["persistent"]) == (1, "garbage", True)
    for rank in data["ranks"]:
        assert sum(rank["parts_ns"].values()) == rank["total_ns"]


def test_a_rank_that_never_started_is_named(capsys: Capture, tmp_path: Path) -> None:
    shutil.copytree(LATE, tmp_path / "run")
    shutil.rmtree(tmp_path / "run" / "ranks" / "00000")
    answer = show(capsys, "late_ranks", tmp_path / "run")
    assert answer.code != 0
    assert "needs two ranks or more" in answer.err
    answer = show(capsys, "goodput", tmp_path / "run")
    assert answer.code == ExitCode.DAMAGED_INPUT
    assert "1 of 2 ranks never reported: 0" in answer.out


@pytest.mark.parametrize("only", ["late_ranks", "goodput", "memory"])
def test_a_run_that_has_nothing_to_show_is_one_line(only: str, capsys: Capture, tmp_path: Path) -> None:
    (tmp_path / "run" / "ranks").mkdir(parents=True)
    answer = show(capsys, only, tmp_path / "run")
    assert (answer.code, answer.out, answer.err.count("\n")) == (1, "", 1)
    assert f"{tmp_path / 'none'} " in show(capsys, only, tmp_path / "none").err


def test_a_job_is_all_of_its_starts(capsys: Capture) -> None:
    answer = show(capsys, "goodput", KILLED)
    assert "of the job's time went to useful steps" in answer.out.splitlines()[0]
    data = result(capsys, "goodput", KILLED)
    assert sum(data["spent_ns"].values()) == data["wall_ns"]
    logs = [ROOT / "fixtures" / "goodput" / f"megatron-{number}.log" for number in (1, 2)]
    assert len(result(capsys, "goodput", *logs)["starts"]) > len(result(capsys, "goodput", logs[0])["starts"])


def test_a_run_is_shown_with_every_rank_and_what_would_lower_the_peak(capsys: Capture, profiled: Path) -> None:
    shutil.copy(MEMORY / "pure.memory.jsonl.gz", profiled / "memory" / "vm_2.1.memory.jsonl.gz")
    first, second = result(capsys, "memory", profiled)["devices"]
    assert [first["rank"], second["rank"]] == [0, 0]
    assert sum(part["bytes"] for part in first["categories"]) == first["peak_bytes"]
    assert first["peak_bytes"] + first["unused_bytes"] == first["reserved_bytes"]
    assert first["savings"][0]["saved_bytes"] > 1e9
    text = show(capsys, "memory", profiled).out
    assert text.startswith("# The fullest device held ")
    for title in ("Peak memory", "Activations at the peak", "What would lower the peak", "blocks.*.mlp.*"):
        assert title in text


def test_a_name_of_an_earlier_version_says_the_new_one(capsys: Capture) -> None:
    for name, now in (("goodput", "perfscope analyze RUN --only goodput"), ("merge", "perfscope export RUN -o trace")):
        answer = run(capsys, name, LATE, "--anything")
        assert (answer.code, answer.out, answer.err.count("\n")) == (2, "", 1)
        assert now in answer.err


BASE = ROOT / "fixtures" / "whatif" / "base"


def test_analyze_gives_the_same_only_where_it_is_named(capsys: pytest.CaptureFixture[str]) -> None:
    document = run(capsys, "analyze", BASE, "--only", "whatif", "--format", "json").data
    alone = run(capsys, "whatif", BASE, "--format", "json").data
    assert document["results"]["whatif"] == {key: alone[key] for key in document["results"]["whatif"]}
    assert "whatif" not in run(capsys, "analyze", BASE, "--format", "json").data["results"]


def test_what_cannot_be_asked_is_one_line(capsys: pytest.CaptureFixture[str]) -> None:
    answer = run(capsys, "whatif", BASE, "--scenario", "magic")
    assert answer.code == 2
    assert answer.err.startswith("perfscope: there is no scenario 'magic'\n")
    assert run(capsys, "whatif", "nowhere").code == 1
