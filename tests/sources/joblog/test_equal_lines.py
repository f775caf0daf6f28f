"""Equal lines of ranks are found as bytes, and give what reading each of them gives."""

from __future__ import annotations

import random
import re
from pathlib import Path

import pytest

from benchmarks.advancing_logs import advancing_logs
from perfscope.sources.joblog import read_log, reading
from perfscope.sources.joblog.repeats.equal_lines import join_equal_lines
from perfscope.tables.joblog import JobLog
from tests.sources.joblog.test_record_lines import LOGS, differences, unexpected

KEPT = 24
LINES = 160
RANKS = 6


def lines_of_logs() -> dict[str, list[bytes]]:
    """The lines of a log of each excerpt."""
    texts = {log.name: log.text(LINES) for log in LOGS}
    texts |= {log.name: log.text(20_000) for log in advancing_logs() if log.name not in texts}
    return {name: text.encode("latin-1").splitlines(keepends=True)[:LINES] for name, text in texts.items()}


LOGS_BY_NAME = lines_of_logs()


def _uneven(lines: list[bytes], draw: random.Random) -> list[tuple[int, bytes]]:
    """The lines of ranks of which each is up to two lines ahead of another one."""
    printed, order = [0] * RANKS, []
    while min(printed) < len(lines):
        rank = draw.choice([rank for rank in range(RANKS) if printed[rank] < min(len(lines), min(printed) + 2)])
        order.append((rank, lines[printed[rank]]))
        printed[rank] += 1
    return order


def texts_of_ranks(lines: list[bytes]) -> dict[str, bytes]:
    """What several ranks print."""
    draw = random.Random(3)
    again = lines[: LINES // 2] + lines[LINES // 2 - 4 :]
    half = len(lines) // 2
    stopping = [(rank, line) for n, line in enumerate(lines) for rank in range(RANKS - (n > half))]
    going_back = [
        (rank, line)
        for n, line in enumerate(lines)
        for rank, line in [*((rank, line) for rank in range(RANKS - 1)), (RANKS - 1, lines[n - half // 2 * (n > half)])]
    ]
    differing = [
        (rank, re.sub(rb"\d(?=\D*$)", b"7", line) if rank == 2 and n % 40 < 3 else line)
        for n, line in enumerate(lines)
        for rank in range(RANKS)
    ]
    return {
        "a rank that stops": b"".join(line for _, line in stopping),
        "a rank that stops, with labels": b"".join(b"[rank%d]:%s" % each for each in stopping),
        "a rank that goes back, with labels": b"".join(b"[rank%d]:%s" % each for each in going_back),
        "a rank with other numbers": b"".join(line for _, line in differing),
        "a rank with other numbers, with labels": b"".join(b"[1,%d]<stdout>:%s" % each for each in differing),
        "labels of other widths": b"".join(b"%d: %s" % (rank, line) for line in lines for rank in range(7, 7 + RANKS)),
        "two hosts": b"".join(b"%d: %s" % (rank % 2, line) for line in lines for rank in range(RANKS)),
        "hosts one behind the other": b"".join(
            b"%d: %s" % (rank // 3, line) for line in lines for rank in range(RANKS)
        ),
        "a line of one rank between": b"".join(
            line * RANKS + (b"[INFO] rank 0 is well\n" if n % 30 == 7 else b"") for n, line in enumerate(lines)
        ),
        "uneven, with labels": b"".join(b"[rank%d]:%s" % each for each in _uneven(lines, draw)),
        "without labels": b"".join(line * RANKS for line in lines),
        "labels": b"".join(b"[default%d]:%s" % (rank, line) for line in lines for rank in range(RANKS)),
        "in any order": b"".join(b"%d: %s" % (n, line) for line in lines for n in draw.sample(range(RANKS), RANKS)),
        "the same label": b"".join(b"[default0]:%s" % line * RANKS for line in lines),
        "unequal runs": b"".join(line * draw.choice((1, RANKS, RANKS + 1)) for line in lines),
        "a restart": b"".join(line * RANKS for line in again),
        "a restart of more ranks": b"".join(line * (RANKS + (n > LINES // 2)) for n, line in enumerate(again)),
        "a restart with labels": b"".join(b"%d: %s" % (rank, line) for line in again for rank in range(RANKS)),
    }


def read_each_line(path: Path, monkeypatch: pytest.MonkeyPatch) -> JobLog:
    """A log of which the rules read each line."""
    with monkeypatch.context() as patch:
        patch.setattr(reading, "join_equal_lines", lambda _text, _kept: None)
        patch.setattr(reading._LogReader, "_bulk_reading", lambda _reader: None)
        patch.setattr(reading._LogReader, "_bulk_of_ranks", lambda _reader: None)
        return read_log(path)


@pytest.mark.parametrize("name", LOGS_BY_NAME)
def test_equal_lines_are_read_as_if_each_were_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    monkeypatch.setattr(reading, "RECORDS_KEPT", KEPT)
    monkeypatch.setattr(reading, "find_period", lambda _text: None)
    path = tmp_path / "run.log"
    for what, text in texts_of_ranks(LOGS_BY_NAME[name]).items():
        path.write_bytes(text)
        assert unexpected(differences(read_log(path), read_each_line(path, monkeypatch)), name) == [], what


def test_most_logs_are_joined(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    joined = 0

    def count(text: bytes, longest: int) -> object:
        nonlocal joined
        found = join_equal_lines(text, longest)
        joined += found is not None
        return found

    monkeypatch.setattr(reading, "RECORDS_KEPT", KEPT)
    monkeypatch.setattr(reading, "join_equal_lines", count)
    path = tmp_path / "run.log"
    logs = 0
    for lines in LOGS_BY_NAME.values():
        joined = 0
        path.write_bytes(texts_of_ranks(lines)["labels"])
        read_log(path)
        logs += joined > 0
    assert logs > 0.8 * len(LOGS_BY_NAME)


def test_lines_without_their_copies_lead_back_to_all() -> None:
    text = b"".join(b"[rank%d]:step %d\n" % (rank, step) for step in range(40) for rank in range(5))
    joined = join_equal_lines(text, longest=2)
    assert joined is not None
    lines = joined.text.splitlines()
    assert lines[:3] == [b"[rank0]:step 0", b"[rank1]:step 0", b"[rank0]:step 1"]
    assert joined.further[len(lines[0]) + 1] == [b"[rank2]:", b"[rank3]:", b"[rank4]:"]
    third = joined.text.index(b"[rank0]:step 1")
    assert joined.text_from(third) == text[text.index(b"[rank0]:step 1") :]


@pytest.mark.parametrize(
    "text",
    [
        b"".join(b"step %d\n" % step for step in range(400)),
        b"step 1\n" * 400,  # of one step nothing tells how many ranks there are
        b"".join(b"step %d\n" % step * (3 + step % 2) for step in range(100)),
        b"0: first\n" + b"".join(b"0: 1: step %d\n0: 2: step %d\n" % (step, step) * 3 for step in range(100)),
        b"".join(b"step %d\n" % step * 6 for step in range(100)) + b"half a line",
        b"".join(b"%d: step %d\n" % (rank % 2, step) for step in range(100) for rank in range(6)),
    ],
    ids=["other lines", "one run", "unequal runs", "two labels", "no end", "two ranks behind each of several labels"],
)
def test_other_lines_are_left_alone(text: bytes) -> None:
    assert join_equal_lines(text, longest=2) is None
