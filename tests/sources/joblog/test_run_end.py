"""Which steps a Trainer's ``train_runtime`` is of: those since its last start."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from perfscope.analyzers.logs.summary import FirstAndLast, LogSummary, summarize_log
from perfscope.sources.joblog import read_log
from tests.sources.joblog.lines import read

REAL = Path(__file__).parents[3] / "fixtures" / "trainer_ends"


def block(planned: int, resumed: str = "") -> str:
    return (
        "***** Running training *****\n  Num examples = 8,000\n  Num Epochs = 1\n"
        "  Instantaneous batch size per device = 8\n"
        "  Total train batch size (w. parallel, distributed & accumulation) = 8\n"
        f"  Gradient Accumulation steps = 1\n  Total optimization steps = {planned:,}\n{resumed}"
    )


def losses(*epochs: float) -> str:
    return "".join(f"{{'loss': 2.0, 'learning_rate': 1e-05, 'epoch': {epoch}}}\n" for epoch in epochs)


def end(runtime: float, steps: float, epoch: float = 1.0, loss: float = 2.0) -> str:
    """As transformers 4 prints it."""
    return (
        f"{{'train_runtime': {runtime}, 'train_samples_per_second': {round(8 * steps / runtime, 3)}, "
        f"'train_steps_per_second': {round(steps / runtime, 3)}, 'train_loss': {loss}, 'epoch': {epoch}}}\n"
    )


RESUMED = "  Continuing training from epoch 0\n  Continuing training from global step 900\n"


def of(tmp_path: Path, *lines: str) -> LogSummary:
    return summarize_log(read(tmp_path, *lines))


def remark(summary: LogSummary, code: str) -> str:
    return next((flag for flag in summary.flags if flag.startswith(f"{code}: ")), "")


def test_the_last_start_counts(tmp_path: Path) -> None:
    first = block(1000) + losses(0.1, 0.2)
    summary = of(tmp_path, first, block(1000, RESUMED), losses(0.95, 1.0), end(100.0, 1000))
    assert summary.times.median_s == 1.0
    again = "  Continuing training from global step 0\n"
    assert of(tmp_path, block(1000, again), end(100.0, 1000)).times.median_s == 0.1


@pytest.mark.parametrize(
    "lines",
    [(losses(0.9, 0.95, 1.0), end(100.0, 1000)), (losses(1.0), end(100.0, 1000, loss=0.2))],
    ids=["epochs", "mean loss"],
)
def test_an_unknown_start_gives_no_step_time(tmp_path: Path, lines: tuple[str, ...]) -> None:
    summary = of(tmp_path, *lines)
    assert (summary.status, summary.times.median_s, summary.iterations) == ("ok", None, None)
    assert "started or went on" in remark(summary, "steps-unknown")


def test_planned_steps_are_no_steps_of_a_run_that_stopped_early(tmp_path: Path) -> None:
    summary = of(tmp_path, block(1000), losses(0.1, 0.2), end(100.0, 1000, epoch=0.2))
    assert summary.times.median_s is None
    assert summary.samples_per_s is None
    assert "ended before" in remark(summary, "steps-unknown")


def test_evaluations_are_in_the_run_time(tmp_path: Path) -> None:
    evaluation = "{'eval_loss': 1.0, 'eval_runtime': 3.5, 'epoch': 0.5}\n"
    inside = of(tmp_path, block(1000), evaluation, losses(0.5, 1.0), end(100.0, 1000))
    behind = of(tmp_path, block(1000), losses(0.5, 1.0), end(100.0, 1000), evaluation)
    assert "holds evaluations" in remark(inside, "evaluations")
    assert not remark(behind, "evaluations")


@pytest.mark.parametrize(
    ("name", "steps", "runtime_s"),
    [
        ("resumed", 20, 1.054),
        ("resumed-without-bars", 20, 1.05),
        ("stopped", 32, 2.19),
        ("evaluated", 80, 5.48),
        ("resumed-4", 20, 1.0685),
        ("stopped-4", 32, 2.204),
    ],
)
def test_real_runs(name: str, steps: int, runtime_s: float) -> None:
    summary = summarize_log(read_log(REAL / f"{name}.log"))
    assert (summary.status, summary.iterations) == ("ok", steps)
    assert summary.times.median_s == pytest.approx(runtime_s / steps)
    assert summary.samples_per_s == pytest.approx(4 * steps / runtime_s)
    assert bool(remark(summary, "evaluations")) == ("stopped" in name or name == "evaluated")
    assert not remark(summary, "throughput-disagrees")


@pytest.mark.parametrize(
    ("name", "samples_per_s"),
    [("resumed-5", 75.921), ("resumed-4", None), ("stopped-4", 58.077)],
)
def test_real_states(name: str, samples_per_s: float | None, tmp_path: Path) -> None:
    path = tmp_path / "trainer_state.json"
    path.write_bytes((REAL / f"state-{name}.json").read_bytes())
    summary = summarize_log(read_log(path))
    assert summary.samples_per_s == (None if samples_per_s is None else pytest.approx(samples_per_s, rel=1e-3))
    assert (summary.times.median_s is None) == (samples_per_s is None)
    if samples_per_s is not None:
        assert summary.times.median_s == pytest.approx(4 / samples_per_s, rel=1e-3)


STATE = {
    "global_step": 1000,
    "max_steps": 1000,
    "log_history": [
        {"epoch": 0.5, "loss": 2.0, "step": 500},
        {"epoch": 1.0, "loss": 1.8, "step": 1000},
        {"epoch": 1.0, "step": 1000, "train_loss": 1.9, "train_runtime": 100.0, "train_steps_per_second": 10.0},
    ],
}


def state(tmp_path: Path, **figures: float) -> LogSummary:
    """A state of 1000 steps with other figures at its end, or at its top."""
    answer = json.loads(json.dumps(STATE))
    for name, value in figures.items():
        (answer if name in answer else answer["log_history"][-1])[name] = value
    path = tmp_path / "trainer_state.json"
    path.write_text(json.dumps(answer, indent=2))
    return summarize_log(read_log(path))


def test_the_speed_of_a_resumed_state_shows_its_steps(tmp_path: Path) -> None:
    summary = state(tmp_path, train_steps_per_second=1.0)
    assert (summary.iterations, summary.times.median_s) == (100, 1.0)


def test_the_mean_loss_of_a_resumed_state_shows_that_its_steps_are_unknown(tmp_path: Path) -> None:
    summary = state(tmp_path, train_loss=0.19)
    assert summary.times.median_s is None
    assert "started or went on" in remark(summary, "steps-unknown")


def test_a_state_that_stopped_early_has_the_steps_done(tmp_path: Path) -> None:
    summary = state(tmp_path, global_step=400, train_samples_per_second=80.0)
    assert (summary.iterations, summary.times.median_s, summary.samples_per_s) == (400, 0.25, 32.0)


DICTIONARIES = (
    "{'loss': 2.5, 'learning_rate': 1e-05, 'epoch': 0.5}\n{'loss': 1.5, 'learning_rate': 0.0, 'epoch': 1.0}\n"
)


def finished(runtime: float, samples: float, steps: float) -> str:
    return (
        f"{{'train_runtime': {runtime}, 'train_samples_per_second': {samples}, 'train_steps_per_second': {steps}, "
        "'train_loss': 2.0, 'epoch': 1.0}\n"
    )


def test_a_speed_that_leaves_a_single_number_of_steps_gives_the_steps(tmp_path: Path) -> None:
    summary = summarize_log(read(tmp_path, DICTIONARIES, finished(100.0, 32.0, 4.0)))
    assert (summary.status, summary.iterations, summary.times.median_s) == ("ok", 400, 0.25)
    assert summary.samples_per_s == 32.0
    assert summary.loss == FirstAndLast(2.5, 1.5)


def test_steps_that_the_rounded_speed_leaves_open_are_absent(tmp_path: Path) -> None:
    summary = summarize_log(read(tmp_path, DICTIONARIES, finished(86400.0, 9.872, 1.234)))
    assert (summary.status, summary.iterations) == ("ok", None)
    assert summary.times.median_s == pytest.approx(1 / 1.234)
    assert summary.samples_per_s == 9.872
    assert summary.iterations is None


def test_a_speed_of_too_few_digits_gives_no_time(tmp_path: Path) -> None:
    summary = summarize_log(read(tmp_path, DICTIONARIES, finished(86400.0, 9.872, 0.007)))
    assert (summary.status, summary.times.median_s, summary.samples_per_s) == ("ok", None, 9.872)
