"""Equal lines of ranks are found as bytes, and give what reading each of them gives."""

from __future__ import annotations

import random
from pathlib import Path

import pytest

from benchmarks.advancing_logs import advancing_logs
from perfscope.sources.joblog import read_log, reading, record_lines
from perfscope.sources.joblog.equal_lines import join_equal_lines
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


def texts_of_ranks(lines: list[bytes]) -> dict[str, bytes]:
    """What several ranks print."""
    draw = random.Random(3)
    again = lines[: LINES // 2] + lines[LINES // 2 - 4 :]
    return {
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
    monkeypatch.setattr(record_lines, "join_equal_lines", count)
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
