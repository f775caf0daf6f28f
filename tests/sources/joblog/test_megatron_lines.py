"""The plain lines of long Megatron logs are read as by the rules, and lose nothing between them."""

from __future__ import annotations

import random
from pathlib import Path

import numpy as np
import pytest

from perfscope.sources.joblog.formats import megatron as module
from perfscope.sources.joblog.reading import read_log
from perfscope.tables.joblog import JobLog
from tests.sources.joblog.lines import megatron

TIMERS = "time (ms) | forward-compute: 12.50 | optimizer: 3.25\n"
CORE = (
    "INFO:megatron.core.timers:(min, max) time across ranks (ms):\n"
    "    forward-backward ...............................: (12.50, 13.25)\n"
)
SAVE = (
    "saving checkpoint at iteration      40 to /c\n"
    "  successfully saved checkpoint at iteration      40 to /c\n"
    "time (ms) | save-checkpoint: 2500.00\n"
)
EVALUATION = " validation loss at iteration 50 | lm loss value: 7.1 |\n"
SPICES = {
    "a save": SAVE,
    "a save of core": "saving checkpoint at iteration      40 to /c\n    save-checkpoint ................: (2400.00, 2500.00)\n",
    "an evaluation": EVALUATION,
    "a start": "[before the start of training step] datetime: 2024-01-01 00:00:00\n",
    "a torn line": megatron(77, 1000.0)[:90] + "\n",
    "two records on a line": megatron(60, 999.0)[:-1] + megatron(61, 998.0),
    "a skipped iteration": megatron(60, 1000.0, skipped=1),
    "a NaN": megatron(60, 1000.0).replace("nan iterations:   0", "nan iterations:   1"),
    "a time that is none": megatron(60, "nan"),
    "a device out of memory": "torch.cuda.OutOfMemoryError: CUDA out of memory.\n",
}


def of(folder: Path, monkeypatch: pytest.MonkeyPatch, text: str, in_full: int) -> JobLog:
    path = folder / "run.log"
    path.write_text(text)
    monkeypatch.setattr(module, "_READ_IN_FULL", in_full)
    return read_log(path)


def assert_same(folder: Path, monkeypatch: pytest.MonkeyPatch, text: str, *, has_plain: bool = True) -> JobLog:
    fast, full = (of(folder, monkeypatch, text, in_full) for in_full in (0, 1 << 40))
    for name in ("iteration", "span", "attempt", "wall_ns", "disturbed", "samples", "skipped", "nan"):
        columns = [np.ma.filled(getattr(log.iterations, name), -1) for log in (fast, full)]
        assert columns[0].tolist() == columns[1].tolist(), name
    for name in ("copies", "redone", "gaps", "saves", "facts", "memory", "ended", "mixture", "unreadable", "complete"):
        assert getattr(fast, name) == getattr(full, name), name
    assert fast.iterations.loss.compressed()[-1:].tolist() == full.iterations.loss.compressed()[-1:].tolist()
    assert not has_plain or len(fast.iterations.loss.compressed()) < len(full.iterations.loss.compressed())
    return fast


@pytest.fixture(autouse=True)
def _small_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    from perfscope.sources.joblog import reading, text

    monkeypatch.setattr(reading, "read_blocks", lambda path: text.read_blocks(path, 5_000))


@pytest.mark.parametrize("prefix", ["", " [2024-05-22 08:03:27.373000]"])
@pytest.mark.parametrize("between", ["", TIMERS, CORE])
def test_long_logs_of_every_prefix(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, prefix: str, between: str) -> None:
    lines = [megatron(n, f"{900 + n / 10:.1f}", prefix=prefix) + between for n in range(1, 200)]
    assert len(assert_same(tmp_path, monkeypatch, "".join(lines)).iterations) == 199


@pytest.mark.parametrize("spice", SPICES.values(), ids=SPICES)
def test_a_line_among_plain_ones_loses_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, spice: str) -> None:
    lines = [megatron(n, f"{900 + n / 10:.1f}") + TIMERS for n in range(1, 120)]
    assert_same(tmp_path, monkeypatch, "".join((*lines[:59], spice, *lines[61:])))


@pytest.mark.parametrize("seed", range(4))
def test_whatever_happens_in_a_long_log(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, seed: int) -> None:
    draw, number, lines = random.Random(seed), 0, list[str]()
    between = ["", TIMERS, CORE, *(text for text in SPICES.values() if "elapsed" not in text)]
    for _ in range(300):
        number = max(number + 1 - draw.choice([0] * 60 + [10, 40]), 1)
        lines.append(megatron(number, f"{1000 + number / 10:.1f}") * draw.choice([1] * 9 + [2]))
        lines += draw.choices(between, [40, 20, 20, *[0.3] * (len(between) - 3)])
    assert_same(tmp_path, monkeypatch, "".join(lines))


def test_a_batch_that_grows_follows_from_the_samples_consumed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    consumed, lines = 0, list[str]()
    for number in range(1, 150):
        batch = 16 * (1 + number // 50)
        consumed += batch
        line = megatron(number, 1000.0, batch=batch)
        lines.append(line.replace(f"samples: {number * batch:12d}", f"samples: {consumed:12d}"))
    assert_same(tmp_path, monkeypatch, "".join(lines))


def test_lines_of_labelled_ranks_are_for_the_rules(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    text = "".join(megatron(n, 1000.0, prefix=f"[default{rank}]:") for n in range(1, 60) for rank in range(4))
    log = assert_same(tmp_path, monkeypatch, text, has_plain=False)
    assert (len(log.iterations), log.copies) == (59, 3 * 59)
