"""Bars that are read many at once give what the same bars give one by one."""

from __future__ import annotations

import random
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from perfscope.sources.joblog import read_log
from perfscope.sources.joblog.content.builder import JobLogBuilder
from perfscope.sources.joblog.formats import torchtune
from perfscope.sources.joblog.series.gaps import Gaps
from perfscope.sources.joblog.series.record import Record
from perfscope.sources.joblog.step_times import progress_bars
from perfscope.sources.joblog.step_times.elapsed_clock import ElapsedClock
from perfscope.sources.joblog.swept_text import SweptText
from perfscope.tables.columns import Int64
from tests.sources.joblog.test_record_lines import differences

LOSSES = "{'loss': 2.5, 'learning_rate': 1e-05, 'epoch': 0.1}\n"


def draw_clock(seconds: int) -> str:
    hours = f"{seconds // 3600}:" if seconds >= 3600 else ""
    return f"{hours}{seconds // 60 % 60:02d}:{seconds % 60:02d}"


def trainer_bar(_epoch: int, step: int, total: int, seconds: int) -> str:
    return f"{100 * step // total:3d}%|##   | {step}/{total} [{draw_clock(seconds)}<00:50,  4.67s/it]"


def lightning_bar(epoch: int, step: int, total: int, seconds: int) -> str:
    cells = f"4.67s/it, v_num=0, loss={step / 7:.3f}"
    return f"Epoch {epoch}: {100 * step // total:3d}%|##   | {step}/{total} [{draw_clock(seconds)}<00:50, {cells}]"


def torchtune_bar(epoch: int, step: int, total: int, seconds: int) -> str:
    number = epoch * total + step - (step % 11 == 0)  # now and then with the name of the step before
    rest = f"{100 * step // total:3d}%|##   | {step}/{total} [{draw_clock(seconds)}<17:27, 13.96s/it]"
    return f"{epoch + 1}|{number}|Loss: {step / 7:.3f}:  {rest}"


def draw_bars(bar: Callable[[int, int, int, int], str], seed: int) -> list[str]:
    """Three epochs in which steps are left out, drawn twice, gone back to, and in which clocks stand still or go back."""
    draw = random.Random(seed)
    lines = []
    for epoch in range(3):
        step, seconds, total = 0, draw.choice((0, 3590)), 400 if bar is trainer_bar else draw.choice((400, 500))
        while step < total:
            lines.append(bar(epoch, step, total, seconds))
            step = max(step + draw.choice((1, 1, 1, 1, 1, 2, 5, 0, -1 if draw.random() < 0.1 else 1)), 0)
            seconds = max(seconds + draw.choice((0, 0, 1, 1, 2, 7)), 0)
            if draw.random() < 0.004:
                step, seconds = step // 2, seconds // 3
    return lines


BARS = {"hf-trainer": trainer_bar, "lightning": lightning_bar, "torchtune": torchtune_bar}


@pytest.mark.parametrize("framework", BARS)
@pytest.mark.parametrize("seed", range(4))
def test_bars_read_at_once_are_those_read_one_by_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, framework: str, seed: int
) -> None:
    path = tmp_path / "run.log"
    lines = draw_bars(BARS[framework], seed)
    if framework == "lightning":
        lines.insert(len(lines) // 2, "Validating:  10%|##  | 1/10 [00:01<00:05]")
    if framework == "hf-trainer":
        lines.insert(len(lines) // 2, f"\n{LOSSES}")
    path.write_text("\r".join(lines) + "\n", newline="")
    at_once = read_log(path)
    with monkeypatch.context() as patch:
        for module in (torchtune, progress_bars):
            patch.setattr(module, "find_runs", each)
        patch.setattr(SweptText, "sweep_to", sweep_each)
        patch.setattr(ElapsedClock, "add_each", add_one_by_one)
        one_by_one = read_log(path)
    assert at_once.framework == framework
    assert at_once.iterations is not None
    assert len(at_once.iterations.wall_ns) > 5
    assert differences(at_once, one_by_one) == []


def each(column: list[bytes], *_others: list[bytes]) -> list[tuple[int, int]]:
    """Each bar as a run of its own."""
    return [(row, row + 1) for row in range(len(column))]


def sweep_each(swept: SweptText, end: int) -> None:
    """Each line by itself."""
    text, swept._read = swept._text[swept._read : end], max(end, swept._read)
    for line in text.splitlines(keepends=True):
        for sweep in swept._sweeps:
            if any(anchor in text for anchor in sweep.anchors):
                sweep.on_text(line)


def add_one_by_one(
    clock: ElapsedClock,
    log: JobLogBuilder,
    steps: Int64,
    clocks_ns: Int64,
    resolution_ns: int,
    record_of: Callable[[int], Record],
    anew: Int64 = np.empty(0, np.int64),  # noqa: B008
    **_options: bool,
) -> None:
    for row in range(len(steps)):
        if row in anew:
            clock.restart(log)
        clock.add(log, record_of(row), int(clocks_ns[row]), resolution_ns)


def test_the_usual_gap_is_the_most_frequent_and_of_several_the_smallest() -> None:
    draw = random.Random(3)
    gaps, drawn = Gaps(), []
    assert gaps.usual == 1
    for _ in range(300):
        drawn.append(draw.randrange(1, 9))
        gaps.add(drawn[-1])
        assert gaps.usual == min(set(drawn), key=lambda gap: (-drawn.count(gap), gap))
    assert gaps.count_above_usual() == sum(gap > gaps.usual for gap in drawn)


@pytest.mark.parametrize("seed", range(12))
def test_bars_and_losses_that_take_turns_are_those_with_other_lines_between(tmp_path: Path, seed: int) -> None:
    draw = random.Random(seed)
    lines = []
    for total in (draw.choice((40, 300)), 300, draw.choice((40, 300))):
        step = seconds = 0
        while step < total:
            step = min(step + draw.choice((1, 1, 2, 9)), total)
            seconds += draw.choice((0, 1, 2, 7))
            lines.append(trainer_bar(0, step, total, seconds))
            lines += [LOSSES.strip()] * draw.choice((0, 1, 1, 2))
            if draw.random() < 0.03:
                lines.append(draw.choice(("{'eval_runtime': 2.5, 'epoch': 0.1}", "Saving model checkpoint to x")))
                lines.append(trainer_bar(0, draw.randrange(40), 39, seconds))
            if draw.random() < 0.01:
                step, seconds = step // 2, 0
    log, apart = tmp_path / "log", tmp_path / "apart"
    log.mkdir()
    apart.mkdir()
    (log / "run.log").write_text("\n".join(lines) + "\n")
    (apart / "run.log").write_text("\nother\n".join(lines) + "\n")
    together = read_log(log / "run.log")
    assert together.framework == "hf-trainer"
    assert differences(together, read_log(apart / "run.log")) == []
