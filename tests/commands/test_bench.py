"""`perfscope bench`, as a user runs it: real trainings, failures, Ctrl-C, and the tables of a folder."""

from __future__ import annotations

import json
import os
import signal
import statistics
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from tests.conftest import LONGEST_S, Ended, environment, perfscope

TINY = ("--model", "gpt:2x32x16x64", "--devices", "cpu", "--batch-size", "8", "--steps", "5")


def rows_of(ended: Ended) -> dict[str, dict[str, Any]]:
    document = json.loads(ended.stdout)
    assert document["schema"] == "perfscope/bench/1"
    return {row["name"]: row for row in document["rows"]}


@pytest.mark.slow
def test_strategies_are_trained_and_compared(tmp_path: Path) -> None:
    strategies = "single,mp,ddp,1f1b,zero-2"
    words = ("bench", "--strategies", strategies, "--nproc", "2", *TINY, "-o", "B")
    ended = perfscope(*words, "--format", "json", cwd=tmp_path)
    assert ended.code == 0, ended.stderr
    rows = rows_of(ended)
    measured = {"single-1-fp32", "mp-2-fp32", "ddp-2-fp32", "1f1b-2-fp32", "zero-2-2-fp32"}
    assert {name for name, row in rows.items() if row["trainings"]} == measured
    for name in measured:
        row = rows[name]
        assert row["notes"] == [], name
        assert row["last_loss"] == pytest.approx(rows["single-1-fp32"]["last_loss"], rel=2e-5)
        assert row["last_loss"] < row["first_loss"]
        (training,) = row["measurements"]
        assert len(training["step_ns"]) == 5
        assert row["samples_per_s"] == pytest.approx(8e9 / statistics.fmean(training["step_ns"]))
        assert training["save_bytes"] > 10_000
    assert rows["1f1b-2-fp32"]["measurements"][0]["bubble"] > 0
    assert len(rows["mp-2-fp32"]["memory_bytes"]) == 1
    assert len(rows["ddp-2-fp32"]["memory_bytes"]) == 2
    leaves_nothing_behind(tmp_path / "B")
    again = perfscope("bench", "B", cwd=tmp_path)
    assert again.code == 0
    assert again.stdout.startswith("# 5 ways to train gpt:2x32x16x64 on CPU, 8 samples a step\n")


def leaves_nothing_behind(folder: Path) -> None:
    """No checkpoint, and nothing of DeepSpeed in the host's shared memory."""
    assert not list((folder / "work").iterdir())
    (run,) = folder.glob("runs/zero-2-2-fp32.0")
    command = json.loads((run / "run.json").read_text())["command"]
    port = command[command.index("--master-port") + 1]
    assert not list(Path("/dev/shm").glob(f"deepspeed_allreduce_buffer_*_{port}_*"))


MODEL = """
import os
from torch import nn

def build():
    if os.environ.get("RANK") == "1":
        raise RuntimeError("rank 1 is ill")
    return nn.Sequential(nn.Embedding(64, 8), nn.Linear(8, 64))
"""


@pytest.mark.slow
def test_a_strategy_that_fails_is_a_row_and_the_rest_goes_on(tmp_path: Path) -> None:
    (tmp_path / "mine.py").write_text(MODEL)
    options = ("--model", "mine.py:build", "--devices", "cpu", "--batch-size", "4", "--steps", "5")
    words = ("bench", "--strategies", "ddp,single,tp", "--nproc", "2", *options, "--format", "json")
    ended = perfscope(*words, cwd=tmp_path)
    assert ended.code == 0, ended.stderr
    rows = rows_of(ended)
    assert rows["ddp-2-fp32"]["reason"] == "failed: RuntimeError: rank 1 is ill"
    assert rows["tp-2-fp32"]["reason"] == "skipped: it is not known how to split the products of " + str(
        tmp_path / "mine.py:build"
    )
    assert rows["single-1-fp32"]["trainings"] == 1
    assert "rank 1 is ill" in (tmp_path / "bench" / "logs" / "ddp-2-fp32.0.log").read_text()


@pytest.mark.slow
def test_ctrl_c_keeps_finished_rows_and_the_same_command_goes_on(tmp_path: Path) -> None:
    words = ("bench", "--strategies", "single,mp", "--nproc", "2", *TINY, "-o", "B", "--format", "json")
    with subprocess.Popen(
        [sys.executable, "-m", "perfscope", *words],
        cwd=tmp_path,
        env=environment(),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    ) as process:
        first = tmp_path / "B" / "rows" / "single-1-fp32.0.json"
        end = time.monotonic() + LONGEST_S
        while not first.exists() and process.poll() is None and time.monotonic() < end:
            time.sleep(0.05)
        os.kill(process.pid, signal.SIGINT)
        stdout, stderr = process.communicate(timeout=LONGEST_S)
    assert process.returncode == 130, stderr
    assert "B keeps the rows that ended" in stderr
    assert [row["name"] for row in json.loads(stdout)["rows"] if row["trainings"]] == ["single-1-fp32"]
    written = first.stat().st_mtime_ns
    ended = perfscope(*words, cwd=tmp_path)
    assert ended.code == 0, ended.stderr
    assert [name for name, row in rows_of(ended).items() if row["trainings"] == 1] == [
        "single-1-fp32",
        "mp-2-fp32",
    ]
    assert first.stat().st_mtime_ns == written
    refused = perfscope(*words, "--batch-size", "16", cwd=tmp_path)
    assert refused.code == 2
    assert "other settings: batch 8 to 16" in refused.stderr


@pytest.mark.slow
@pytest.mark.parametrize(
    ("content", "model", "problem"),
    [
        ("def build():\n    return 1 / 0\n", "mine.py:build", "ZeroDivisionError: division by zero (File "),
        ("", "resnet51", "'resnet51' is not resnet50, gpt2-small"),
    ],
)
def test_a_model_that_cannot_be_built_is_refused_before_anything_runs(
    tmp_path: Path, content: str, model: str, problem: str
) -> None:
    (tmp_path / "mine.py").write_text(content)
    ended = perfscope("bench", "--model", model, "--devices", "cpu", cwd=tmp_path)
    assert ended.code == 2
    assert problem in ended.stderr
    assert not (tmp_path / "bench").exists()


@pytest.mark.parametrize(
    ("words", "problem"),
    [
        (("--strategies", "dpp"), "there is no strategy 'dpp'"),
        (("--nproc", "two"), "--nproc two is not a list of numbers"),
        (("--precision", "fp8"), "there is no precision 'fp8'"),
        (("--batch-size", "0"), "--batch-size must be at least 1"),
        (("--model", "missing.py:build"), "missing.py does not exist"),
        (("--launcher", "srun {ranks}"), "has other fields than {nproc} and {port}"),
        (("missing",), "missing holds no benchmark"),
    ],
)
def test_what_means_nothing_is_refused_before_torch_is_loaded(
    tmp_path: Path, words: tuple[str, ...], problem: str
) -> None:
    ended = perfscope("bench", "--devices", "cpu", *words, cwd=tmp_path)
    assert ended.code in (1, 2)
    assert problem in ended.stderr
    assert list(tmp_path.iterdir()) == []


def test_nothing_is_trained_by_all_defaults_where_nobody_can_be_asked(tmp_path: Path) -> None:
    ended = perfscope("bench", "-o", "B", cwd=tmp_path)
    assert ended.code == 2
    assert "all defaults would train 30 rows, 1 training each: 10 minutes at least, 300 at most" in ended.stderr
    assert "--yes" in ended.stderr
    assert not list(tmp_path.iterdir())
