"""In a step like most others the hooks make few calls, and its record is the one that a special step has."""

from __future__ import annotations

import itertools
import json
import subprocess
import sys
import threading
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import pytest
import torch

from perfscope.hooks import late_writer
from perfscope.hooks.capture import Capture
from perfscope.hooks.config import Config
from perfscope.hooks.selection import parse_windows
from perfscope.hooks.step import StepAccumulator
from tests.conftest import SCRIPTS, environment

#: Functions of the hooks that one step calls, at most.
MOST_CALLS = {"plain": 20, "scaler": 28, "ddp": 21, "fsdp2": 20}


@pytest.mark.slow
@pytest.mark.parametrize("training", MOST_CALLS)
def test_a_step_calls_few_functions_of_the_hooks(training: str, tmp_path: Path) -> None:
    command = [sys.executable, str(SCRIPTS / "counting_calls.py"), training]
    ended = subprocess.run(command, cwd=tmp_path, env=environment(), capture_output=True, text=True, check=False)
    assert ended.returncode == 0, ended.stderr
    calls: dict[str, int] = json.loads(ended.stdout.splitlines()[-1])
    assert 0 < sum(calls.values()) <= MOST_CALLS[training], calls
    assert "Capture._end_special_step" not in calls


class Training:
    """What a loop reports to a capture, where most ends of steps are quick, or none is."""

    def __init__(self, folder: Path, *, quick: bool = True, steps: str = "1000") -> None:
        self.folder = folder
        self.capture = Capture(Config(str(folder), parse_windows(steps), nvml_hz=0))
        self.capture._memory.is_read_beside = True  # as after the first steps
        self.optimizer = torch.optim.SGD([torch.nn.Parameter(torch.zeros(1))], lr=0.1)
        self.special_ends = 0
        end_step = self.capture._end_special_step

        def count(*args: Any, **kwargs: Any) -> None:
            self.special_ends += 1
            end_step(*args, **kwargs)
            if not quick:
                self.capture.step.next_event = 0

        vars(self.capture)["_end_special_step"] = count

    def step(self, *, rows: int = 2) -> None:
        batch = [torch.zeros(rows, 4, dtype=torch.long)]
        self.capture.on_batch_loaded(batch, 17)
        self.capture.on_gradients_cleared(self.optimizer)
        self.capture.on_forward((batch[0],), {})
        self.capture.on_optimizer_step(self.optimizer)

    def records(self) -> list[dict[str, Any]]:
        self.capture.files.close()
        (file,) = self.folder.glob("ranks/*/steps.jsonl")
        return [json.loads(line) for line in file.read_text().splitlines()]


TIMES = ("end_ns", "wall_ns", "gap_ns", "hook_ns", "host")


def without_times(records: list[dict[str, Any]]) -> list[dict[str, Any]]:
    return [{name: value for name, value in record.items() if name not in TIMES} for record in records]


def test_the_records_are_those_of_special_steps(tmp_path: Path) -> None:
    trainings = [Training(tmp_path / str(quick), quick=quick) for quick in (True, False)]
    for training in trainings:
        for number in range(12):
            training.step(rows=1 + number % 3)
            if number == 5:  # a validation
                with torch.no_grad():
                    training.capture.on_batch_loaded([torch.zeros(9, 4)], 5)
            if number == 7:
                training.capture.on_step_begin()
    quick, slow = trainings
    assert quick.special_ends < slow.special_ends == 12
    ours, expected = quick.records(), slow.records()
    assert [record["step"] for record in ours] == list(range(1, 13))
    validation_ns = {record["step"]: record.get("no_grad_ns", 0) for record in ours}
    for records in (ours, expected):
        (validating,) = (record for record in records if record.pop("spans", None) and record["step"] > 1)
        assert validating["step"] == 7
        assert validating.pop("no_grad_ns") > 0
    assert without_times(ours) == without_times(expected)
    for before, record in itertools.pairwise(ours):
        assert 0 <= record["wall_ns"] <= record["end_ns"] - before["end_ns"]
        # The validation stands before the first sign of the step, and is no part of its time.
        assert 0 <= record.get("gap_ns", 0) <= record["wall_ns"] + validation_ns[record["step"]]
        assert record["hook_ns"] > 0


@pytest.mark.parametrize("has_waits", [False, True])
def test_counters_are_read_in_long_steps_and_one_in_sixteen_and_in_all_where_waits_are_timed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, *, has_waits: bool
) -> None:
    monkeypatch.setattr(late_writer, "FIRST_PERIOD_S", 600)  # lines are made when the files are closed
    training = Training(tmp_path)
    for _ in range(4):
        training.capture.step.long_ns = 0
        training.step()
    counters, exchanges = training.capture._counters, training.capture._exchanges
    if counters.file < 0:
        pytest.skip("the kernel has no schedstat")
    monkeypatch.setattr(exchanges, "is_in_use", has_waits)
    monkeypatch.setattr(exchanges, "take", lambda: (1, 2, []))
    step = training.capture.step
    reads: list[int] = []
    read = counters.read

    def read_noted() -> Any:
        reads.append(training.capture.steps + 1)
        return read()

    monkeypatch.setattr(counters, "read", read_noted)
    for number in range(5, 41):
        step.long_ns = 0 if number == 20 else 10**12
        training.step()
    assert reads == (list(range(5, 41)) if has_waits else [16, 20, 32])
    counted = {record["step"]: record["host"][-1] for record in training.records() if "host" in record}
    assert counted == {3: 1, 4: 1} | (dict.fromkeys(reads, 1) if has_waits else {16: 12, 20: 4, 32: 12})


def test_a_step_is_long_where_it_takes_an_eighth_more_than_usual_and_one_long_step_changes_little() -> None:
    step = StepAccumulator()
    step.learn_length(1 << 20)
    assert step.long_ns == (1 << 20) * 9 // 8
    step.learn_length(1 << 40)
    assert step.long_ns == ((1 << 20) + (1 << 14)) * 9 // 8
    for _ in range(400):
        step.learn_length(1 << 21)
    assert abs(step.long_ns - (1 << 21) * 9 // 8) < 1 << 8


@pytest.mark.parametrize("error", [KeyboardInterrupt, ValueError])
@pytest.mark.parametrize("hook", ["add_batch", "add_forward"])
def test_an_interrupt_in_a_hook_reaches_training_and_an_error_does_not(
    hook: str,
    error: type[BaseException],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    training = Training(tmp_path)
    for _ in range(4):
        training.step()

    def fail(*_args: object) -> None:
        raise error

    monkeypatch.setattr(StepAccumulator, hook, fail)
    with pytest.raises(KeyboardInterrupt) if error is KeyboardInterrupt else nullcontext():
        if hook == "add_forward":
            training.capture.on_forward((), {})
        else:
            training.capture.on_batch_loaded({}, 1)
    assert training.capture.dead
    assert error.__name__ in capsys.readouterr().err


def test_a_step_of_another_thread_counts_for_nothing_and_one_of_another_optimizer_is_special(tmp_path: Path) -> None:
    training = Training(tmp_path)
    for _ in range(4):
        training.step()
    thread = threading.Thread(target=training.capture.on_optimizer_step, args=(training.optimizer,))
    thread.start()
    thread.join()
    assert training.capture.steps == 4
    ends = training.special_ends
    training.capture.on_optimizer_step(torch.optim.SGD([torch.nn.Parameter(torch.zeros(1))], lr=0.1))
    assert training.special_ends == ends + 1


def test_an_optimizer_in_another_thread_than_the_loader_s_is_named_once(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    training = Training(tmp_path)
    training.capture.on_batch_loaded([torch.zeros(2, 4)], 1)
    for _ in range(2):
        thread = threading.Thread(target=training.capture.on_optimizer_step, args=(training.optimizer,))
        thread.start()
        thread.join()
    assert (training.capture.steps, training.capture.dead) == (0, False)
    assert capsys.readouterr().err.count("they count no steps") == 1


def test_steps_before_a_window_are_special(tmp_path: Path) -> None:
    training = Training(tmp_path, steps="12-13")
    assert training.capture._windows.quiet_steps == 9
    for _ in range(9):
        training.step()
    ends = training.special_ends
    assert ends < 9
    training.step()
    assert training.special_ends == ends + 1
    training.capture._windows.discard()


def test_what_the_writing_thread_did_is_in_the_next_step(tmp_path: Path) -> None:
    training = Training(tmp_path)
    for _ in range(4):
        training.step()
    ends = training.special_ends
    writer = training.capture.files.claim().late
    writer._spent_ns, writer._values = writer._spent_ns + 10**12, {"memory_peak_bytes": 5}
    training.capture.step.has_news = True
    training.step()
    training.step()
    assert training.special_ends == ends
    *_, record, last = training.records()
    assert record["hook_ns"] > 10**12 > last["hook_ns"]
    assert (record["memory_peak_bytes"], last.get("memory_peak_bytes")) == (5, None)


def test_a_record_that_cannot_be_written_ends_the_capture_in_any_step(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    training = Training(tmp_path)
    for _ in range(4):
        training.step()
    writer = training.capture.files.claim().late
    writer.error = OSError("disk full")
    assert writer.on_turn is not None
    writer.on_turn()  # what the thread calls behind an error
    training.step()
    assert training.capture.dead
    assert "disk full" in capsys.readouterr().err


@pytest.mark.parametrize("layout", [torch.strided, torch.jagged])
@pytest.mark.filterwarnings("ignore")
def test_a_nested_batch_counts_no_samples_and_ends_nothing(layout: torch.layout) -> None:
    ids = torch.nested.nested_tensor([torch.zeros(3).long(), torch.zeros(5).long()], layout=layout)
    step = StepAccumulator()
    step.add_forward((ids,), {})
    step.add_batch(ids)
    assert (step.micro_batches, step.forward_samples, step.loaded_samples) == (1, 0, 0)
