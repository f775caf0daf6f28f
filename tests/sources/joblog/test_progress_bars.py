"""A progress bar proves no training, and its rate is a moving average."""

from __future__ import annotations

from pathlib import Path

import pytest

from perfscope.analyzers.logs.summary import summarize_log
from tests.conftest import ROOT
from tests.sources.joblog.lines import read, seconds

LOSS = "{'loss': 2.5, 'learning_rate': 1e-05, 'epoch': 0.1}\n"


def bar(step: int, clock_s: int, total: int = 25, rate: str = "4.67s/it", name: str = "") -> str:
    clock = f"{clock_s // 60:02d}:{clock_s % 60:02d}"
    return f"\r{name}{100 * step // total:3d}%|##        | {step}/{total} [{clock}<00:50,  {rate}]"


@pytest.mark.parametrize(
    "text",
    [
        bar(1, 2, 2, name="Loading checkpoint shards: ") + bar(2, 5, 2, name="Loading checkpoint shards: "),
        bar(1, 2, 2, name="Fetching 2 files: ") + bar(2, 5, 2, name="Fetching 2 files: "),
        bar(3, 9, name="Epoch 0: ") + bar(4, 12, name="Epoch 0: "),
        bar(3, 9, name="Training Progress: ") + bar(4, 12, name="Training Progress: "),
        bar(3, 9, name="steps: ") + bar(4, 12, name="steps: "),
        "".join(bar(n, n) for _ in range(20) for n in range(17)),
        bar(1, 3) + bar(2, 6),
    ],
)
def test_a_bar_alone_is_no_training(tmp_path: Path, text: str) -> None:
    log = read(tmp_path, text, "\n")
    assert (log.framework, len(log.iterations)) == (None, 0)


def test_step_times_are_differences_of_the_clock(tmp_path: Path) -> None:
    log = read(tmp_path, bar(0, 0, rate="?it/s"), bar(1, 3), bar(2, 7), bar(3, 15, rate="5.97s/it"), "\n", LOSS)
    assert seconds(log) == [3.0, 4.0, 8.0]
    assert log.time_source == "the progress bar's clock"


@pytest.mark.parametrize("step_s", [1.3, 2.4, 11.6])
def test_the_median_is_that_of_the_steps_not_of_whole_seconds(tmp_path: Path, step_s: float) -> None:
    log = read(tmp_path, "".join(bar(n, int(n * step_s), 200) for n in range(201)), "\n", LOSS)
    median_s = summarize_log(log).times.median_s
    assert median_s == pytest.approx(step_s, rel=0.03)


def test_a_clock_that_hardly_moved_gives_no_time(tmp_path: Path) -> None:
    clocks = {1317: 697, 1318: 697, 1319: 698, 1320: 698, 1321: 699, 1322: 700}
    log = read(tmp_path, "".join(bar(step, clock, 36234) for step, clock in clocks.items()), "\n", LOSS)
    assert (log.framework, set(seconds(log))) == ("hf-trainer", {None})


def test_an_evaluation_disturbs_the_next_step(tmp_path: Path) -> None:
    log = read(
        tmp_path,
        *(bar(0, 0), bar(1, 3), bar(2, 6), "\n", LOSS, bar(1, 1, 3), bar(3, 30, 3), "\n"),
        *("{'eval_loss': 2.0, 'eval_runtime': 31.0, 'epoch': 0.1}\n", bar(3, 40), bar(4, 43), "\n"),
    )
    assert log.iterations.disturbed.tolist() == ["", "", "evaluation", ""]


def test_a_bar_that_is_drawn_anew_is_a_restart_and_a_copy_is_not(tmp_path: Path) -> None:
    first = "".join(bar(n, 3 * n) + bar(n, 3 * n) for n in range(10))
    log = read(tmp_path, first, "\n", LOSS, first, "\n")
    assert log.iterations.attempt.max() == 1
    assert set(seconds(log)) == {3.0}


def test_the_bar_of_the_losses_is_the_trainings_among_others(tmp_path: Path) -> None:
    evaluation = "".join(bar(n, n, 90) for n in range(1, 91))
    log = read(tmp_path, evaluation, "\n", bar(1, 3), bar(2, 6), "\n", LOSS, evaluation, "\n")
    assert log.iterations.iteration.tolist() == [1, 2]


@pytest.mark.parametrize(
    "line",
    [
        "[2024-05-22 08:03:27,373] [    INFO] - ***** Running training *****\n",
        "***** Running training *****\n  Num batches each epoch = 25\n",
    ],
)
def test_another_trainer_with_the_same_heading_is_not_the_trainer(tmp_path: Path, line: str) -> None:
    log = read(tmp_path, line, bar(1, 3), bar(2, 6), "\n")
    assert (log.framework, len(log.iterations)) == (None, 0)


@pytest.mark.parametrize(
    "front", ["  3: ", "trainer-1  | ", "[pod/trainer-0/main] ", "2024-05-22T08:03:27.373Z stderr F ", "[rank0]:", ""]
)
def test_a_bar_is_read_behind_what_a_launcher_writes(tmp_path: Path, front: str) -> None:
    text = (ROOT / "fixtures" / "published_logs" / "axolotl-bars.log").read_text()
    log = read(tmp_path, *(front + line for line in text.splitlines(keepends=True)))
    assert [time for time in seconds(log) if time is not None] == [4.0, 4.0, 5.0]


@pytest.mark.parametrize("name", ["Loading checkpoint shards", "Evaluating 3", "step-7", "Epoch 1 |", "2024-05-22"])
def test_a_name_in_front_of_a_bar_is_no_launcher(tmp_path: Path, name: str) -> None:
    bars = [f"{name}: {10 * n}%|##   | {n}/9 [00:{4 * n:02d}<00:30,  4.00s/it]\n" for n in range(1, 9)]
    log = read(tmp_path, "{'loss': 2.5, 'learning_rate': 1e-05, 'epoch': 0.1}\n", *bars)
    assert seconds(log) == []
