"""Records of steps are on disk two seconds after the step at most, in order and whole, and a full disk is told."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

from perfscope.hooks import late_writer
from perfscope.hooks.late_writer import (
    FIRST_PERIOD_S,
    FIRST_TURNS,
    GLANCE_EACH,
    GLANCE_S,
    GLANCE_TURNS,
    PERIOD_S,
    LateWriter,
)
from perfscope.hooks.record_files import RecordFile
from perfscope.wire.records import StepRecord, to_line

LONGEST_S = 60


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return tmp_path / "steps.jsonl"


def wait_for_turn(writer: LateWriter) -> None:
    until_s = time.monotonic() + LONGEST_S
    while not writer._spent_ns and time.monotonic() < until_s:
        time.sleep(0.01)
    assert writer._spent_ns


def test_a_record_is_written_soon_and_training_does_not_wait_for_it(file: Path) -> None:
    writer = LateWriter()
    steps = RecordFile(str(file))
    for step in (1, 2):
        writer.add(steps, to_line, StepRecord(step, 10 * step, "optimizer", skipped=True))
    assert file.read_bytes() == b""
    until_s = time.monotonic() + LONGEST_S
    while not file.read_bytes() and time.monotonic() < until_s:
        time.sleep(0.01)
    assert [json.loads(line) for line in file.read_text().splitlines()] == [
        {"step": step, "end_ns": 10 * step, "source": "optimizer", "skipped": True} for step in (1, 2)
    ]
    wait_for_turn(writer)
    assert writer.take_news()[0] > 0
    writer.close()


def test_turns_are_rarer_when_training_has_gone_on_for_some_seconds(monkeypatch: pytest.MonkeyPatch) -> None:
    writer, slept, looks = LateWriter(), list[float](), list[int]()

    def sleep(seconds: float) -> None:
        slept.append(seconds)
        writer._is_closed = len(slept) > 20_000

    writer.glance = lambda: looks.append(len(slept))
    monkeypatch.setattr(time, "sleep", sleep)
    for turn in range(FIRST_TURNS):
        writer._wait(turn)
    assert sum(slept) == pytest.approx(FIRST_TURNS * FIRST_PERIOD_S)
    for turn in range(FIRST_TURNS, GLANCE_TURNS):
        writer._wait(turn)
    assert sum(slept) == pytest.approx(FIRST_TURNS * FIRST_PERIOD_S + (GLANCE_TURNS - FIRST_TURNS) * PERIOD_S)
    assert len(looks) == len(slept) == round(sum(slept) / GLANCE_S)
    slept.clear()
    looks.clear()
    for turn in range(GLANCE_TURNS, GLANCE_TURNS + 2 * GLANCE_EACH):
        writer._wait(turn)
    assert sum(slept) == pytest.approx(2 * GLANCE_EACH * PERIOD_S)
    assert len(looks) == 2 * PERIOD_S / GLANCE_S


def test_a_full_disk_ends_it_with_the_next_record() -> None:
    writer, full = LateWriter(), RecordFile("/dev/full")
    writer.add(full, to_line, StepRecord(1, 1, "optimizer"))
    until_s = time.monotonic() + LONGEST_S
    while writer.error is None and time.monotonic() < until_s:
        time.sleep(0.01)
    with pytest.raises(OSError, match="No space left"):
        writer.add(full, to_line, StepRecord(2, 2, "optimizer"))


def test_a_killed_process_loses_what_came_since_the_last_turn_alone(file: Path) -> None:
    assert PERIOD_S == 2.0
    code = (
        "import os, sys, time\n"
        "from perfscope.hooks.late_writer import LateWriter\n"
        "from perfscope.hooks.record_files import RecordFile\n"
        "from perfscope.wire.records import StepRecord, to_line\n"
        "writer, file = LateWriter(), RecordFile(sys.argv[1])\n"
        "for step in range(1, 101):\n"
        "    writer.add(file, to_line, StepRecord(step, step, 'optimizer'))\n"
        "while not writer._spent_ns:\n"
        "    time.sleep(0.01)\n"
        "writer.add(file, to_line, StepRecord(101, 101, 'optimizer'))\n"
        "os.kill(os.getpid(), 9)\n"
    )
    ended = subprocess.run([sys.executable, "-c", code, file], capture_output=True, text=True, check=False)
    assert ended.returncode == -9, ended.stderr
    records = [json.loads(line) for line in file.read_text().splitlines()]
    assert [record["step"] for record in records[:100]] == list(range(1, 101))
    assert len(records) <= 101


def test_a_reading_that_fails_costs_no_record(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(late_writer, "FIRST_PERIOD_S", 0.05)
    writer = LateWriter(lambda: {"memory_peak_bytes": 1 // 0})
    writer.add(RecordFile(str(file)), to_line, StepRecord(1, 1, "optimizer"))
    wait_for_turn(writer)
    assert file.read_bytes()
    assert writer.error is None
    assert writer.take_news()[1] is None
    writer.close()


def test_a_script_that_joins_all_threads_does_not_wait_for_it(file: Path) -> None:
    writer = LateWriter()
    before = threading.enumerate()
    writer.add(RecordFile(str(file)), to_line, StepRecord(1, 1, "optimizer"))
    wait_for_turn(writer)
    assert threading.enumerate() == before
    writer.close()


def test_a_number_that_the_script_gave_to_its_own_file_is_not_written_to(file: Path, tmp_path: Path) -> None:
    """As after a daemon's ``os.closerange``."""
    writer = LateWriter()
    steps = RecordFile(str(file))
    writer.add(steps, to_line, StepRecord(1, 1, "optimizer"))
    writer.flush()
    own = tmp_path / "checkpoint.bin"
    taken = os.open(own, os.O_WRONLY | os.O_CREAT)
    os.dup2(taken, steps._descriptor)
    writer.add(steps, to_line, StepRecord(2, 2, "optimizer"))
    writer.flush()
    os.write(taken, b"C" * 10)
    assert own.read_bytes() == b"C" * 10
    writer.add(steps, to_line, StepRecord(3, 3, "optimizer"))
    os.close(steps._descriptor)
    writer.close()
    assert [json.loads(line)["step"] for line in file.read_text().splitlines()] == [1, 2, 3]


def test_what_follows_a_line_that_a_full_disk_cut_is_a_line_of_its_own(
    file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    steps, write = RecordFile(str(file)), os.write
    monkeypatch.setattr(os, "write", lambda descriptor, content: write(descriptor, content[:5]))
    with pytest.raises(OSError, match="a record was cut"):
        steps.append(b'{"step": 1}\n')
    monkeypatch.undo()
    steps.append(b'{"step": 2}\n')
    assert file.read_bytes() == b'{"ste\n{"step": 2}\n'


def test_a_row_that_makes_no_line_costs_itself_alone(file: Path) -> None:
    def make_line(step: int) -> bytes:
        if step == 5:
            raise ValueError("no line")
        return json.dumps({"step": step}).encode() + b"\n"

    writer, steps = LateWriter(), RecordFile(str(file))
    for step in range(1, 10):
        writer.add(steps, make_line, step)
    with pytest.raises(ValueError, match="no line"):
        writer.flush()
    writer.close()
    assert [json.loads(line)["step"] for line in file.read_text().splitlines()] == [*range(1, 5), *range(6, 10)]
