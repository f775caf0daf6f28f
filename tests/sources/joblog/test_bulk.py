"""The fast reading of long logs gives what the slow one gives."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from perfscope.sources.joblog import read_log, reading
from perfscope.sources.joblog.formats.megatron.bulk import split_block
from perfscope.tables.joblog import JobLog
from tests.sources.joblog.lines import megatron

TIMERS = "time (ms) | forward-compute: 31749.74 | backward-compute: 88911.73 | optimizer: 51.07\n"
CORE = "INFO:megatron.core.timers:(min, max) time across ranks (ms):\n    forward-backward ...: (2825.99, 2826.86)\n"
EVALUATION = " validation loss at iteration 9 | lm loss value: 7.0E+00 | \n"
SAVE = "time (ms) | save-checkpoint: 57514.53\n"


def both(path: Path, monkeypatch: pytest.MonkeyPatch) -> tuple[JobLog, JobLog]:
    """A log read in full, and read with few records kept."""
    slow = read_log(path)
    with monkeypatch.context() as patch:
        patch.setattr(reading, "RECORDS_KEPT", 8)
        fast = read_log(path)
    return slow, fast


def every_time(log: JobLog) -> list[int]:
    kept = log.iterations
    times = np.ma.getdata(kept.wall_ns)[(kept.disturbed == "") & (np.diff(kept.attempt, prepend=-1) == 0)].tolist()
    if log.folded is not None:
        times += np.repeat(log.folded.wall_ns, log.folded.count).tolist()
    return sorted(times)


def totals(log: JobLog) -> dict[str, object]:
    folded = log.folded
    numbers = log.iterations.iteration.compressed()
    return {
        "records": len(log.iterations) + (folded.records if folded else 0),
        "last": folded.last_iteration if folded else int(numbers[-1]),
        "skipped": int(log.iterations.skipped.sum()) + (folded.skipped if folded else 0),
        "redone": log.redone,
        "nan": int(log.iterations.nan.sum()) + (folded.nan if folded else 0),
        "saves": [save.wall_ns for save in log.saves],
        "unreadable": log.unreadable,
        "times": every_time(log),
    }


def test_a_block_is_taken_apart_into_plain_lines_and_the_rest() -> None:
    lines = [megatron(n, f"{100.0 + n:.1f}") + TIMERS for n in range(1, 31)]
    lines[12] = megatron(13, "113.0").replace("nan iterations:   0", "nan iterations:   1") + TIMERS
    lines[14] = megatron(15, "115.0", skipped=12) + TIMERS
    text = "".join([*lines, SAVE]).encode()
    parts = split_block(text, len(text), np.empty(len(text), np.bool_))
    assert parts is not None
    assert list(parts.plain.iteration) == [n for n in range(1, 30) if n != 13]
    assert parts.plain.wall_ns.tolist() == [(1000 + 10 * n) * 10**5 for n in range(1, 30) if n != 13]
    assert parts.plain.columns["skipped"].tolist() == [12 * (n == 15) for n in range(1, 30) if n != 13]
    assert parts.plain.consumed[0] == 1024
    rest = parts.rest.decode().splitlines()
    assert [line.split("|")[0].split("/")[0].split()[:2] for line in rest] == [
        ["iteration", "13"],
        ["iteration", "30"],
        ["time", "(ms)"],
    ]


@pytest.mark.parametrize(
    "prefix", ["", "[default7]:", "63: ", " [2026-11-21 00:35:21.604905]", " [2024-04-06 03:02:12]"]
)
@pytest.mark.parametrize("beside", ["", TIMERS, CORE])
def test_long_logs_of_every_prefix(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, prefix: str, beside: str) -> None:
    path = tmp_path / "long.log"
    path.write_text("".join(megatron(n, f"{5000 + n % 97}.{n % 10}", prefix=prefix) + beside for n in range(1, 800)))
    slow, fast = both(path, monkeypatch)
    assert fast.folded is not None
    assert totals(fast) == totals(slow)
    assert fast.folded.samples == 1024 * fast.folded.records


NAN = megatron(700, "700.0").replace("nan iterations:   0", "nan iterations:   1")
TORN = megatron(700, "700.0").partition("| learning")[0] + megatron(701, "701.0")


@pytest.mark.parametrize("lines", [NAN, TORN], ids=["nan", "torn"])
def test_a_line_among_plain_ones_loses_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, lines: str) -> None:
    path = tmp_path / "long.log"
    first = "".join(megatron(n, f"{100 + n}.0") + TIMERS for n in range(1, 700))
    after = "".join(megatron(n, f"{100 + n}.0") + TIMERS for n in range(702, 1400))
    path.write_text(first + lines + after)
    slow, fast = both(path, monkeypatch)
    assert totals(fast) == totals(slow)


def test_a_second_job_in_a_long_log_is_seen(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "long.log"
    lines = [megatron(n, "100.0", total=5000) + TIMERS for n in range(1, 3000)]
    path.write_text("".join([*lines, *(megatron(n, "100.0", total=700) + TIMERS for n in range(1, 300))]))
    slow, fast = both(path, monkeypatch)
    assert slow.mixture is not None
    assert fast.mixture == slow.mixture


def test_a_second_job_that_begins_late_in_a_long_log_is_seen(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "long.log"
    lines = [megatron(n, "100.0") + (megatron(n, "300.0") if n > 600 else TIMERS) for n in range(1, 900)]
    path.write_text("".join(lines))
    slow, fast = both(path, monkeypatch)
    assert slow.mixture is not None
    assert fast.mixture == slow.mixture


def test_a_growing_batch_is_summed_by_the_samples_consumed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path, consumed, lines = tmp_path / "long.log", 0, []
    for n in range(1, 601):
        batch = 16 * (1 + n // 100)
        consumed += batch
        line = megatron(n, "100.0", batch=batch)
        lines.append(line.replace(f"consumed samples: {n * batch:12d}", f"consumed samples: {consumed:12d}"))
    path.write_text("".join(lines))
    _, fast = both(path, monkeypatch)
    assert fast.folded is not None
    assert fast.folded.samples == consumed - 16 * 8


SPICES = st.sampled_from(
    ["", "", "", "skip", "nan", "odd time", "evaluation", "restart", "save", "glued", "torn", "copy", "half", "wide"]
)


@settings(max_examples=40, deadline=None)
@given(spices=st.lists(st.tuples(st.integers(20, 120), SPICES), min_size=1, max_size=6), seed=st.integers(0, 10**6))
def test_whatever_happens_in_a_long_log(spices: list[tuple[int, str]], seed: int) -> None:
    draw = np.random.default_rng(seed)
    text, number = "", 0
    for count, spice in spices:
        for _ in range(count):
            number += 1
            text += megatron(number, f"{draw.integers(10, 999_999) / 10:.1f}") + TIMERS
        number += 1
        if spice == "restart":
            number -= min(number - 1, 7)
        text += {
            "skip": megatron(number, "77.7", skipped=1),
            "nan": megatron(number, "77.7").replace("nan iterations:   0", "nan iterations:   1"),
            "torn": megatron(number, "77.7").partition("| learning")[0] + megatron(number + 1, "88.8"),
            "odd time": megatron(number, "1.2.3"),
            "evaluation": EVALUATION + megatron(number, "777.7"),
            "save": SAVE + megatron(number, "77.7"),
            "glued": megatron(number, "77.7").rstrip("\n") + megatron(number + 1, "88.8"),
            "copy": megatron(number, "77.7") + megatron(number, "78.8"),
            "half": megatron(number, "77.7")[:90] + "\n",
            "wide": megatron(number, "123456789.1"),
        }.get(spice, megatron(number, "77.7"))
        number += spice in ("glued", "torn")
    import tempfile

    with tempfile.TemporaryDirectory() as folder, pytest.MonkeyPatch.context() as patch:
        path = Path(folder) / "long.log"
        path.write_text(text)
        slow, fast = both(path, patch)
        assert totals(fast) == totals(slow)


#: A line of Megatron behind a label.
LABELLED = (
    " iteration {n:8}/  100000 | consumed samples: {samples:12} | elapsed time per iteration (ms): 812.{digit} | "
    "learning rate: 1.000E-04 | global batch size:     4 | lm loss: 2.{digit}E+00 | loss scale: 1.0 | "
    "number of skipped iterations:   0 | number of nan iterations:   0 |\n"
)


@pytest.mark.parametrize("label", ["[default{rank}]:", "[default1]:", "{rank}: "])
def test_labelled_ranks_of_megatron_are_one_job(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, label: str) -> None:
    monkeypatch.setattr(reading, "RECORDS_KEPT", 24)
    path = tmp_path / "run.log"
    lines = [LABELLED.format(n=n, samples=4 * n, digit=n % 10) for n in range(1, 501)]
    path.write_text("".join(label.format(rank=rank) + line for line in lines for rank in range(8)))
    log = read_log(path)
    assert log.folded is not None
    assert (log.folded.records, log.copies) == (500 - 24, 7 * 500)
