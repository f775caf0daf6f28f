"""Text that repeats itself is counted, and gives what reading all of it gives."""

from __future__ import annotations

from pathlib import Path

import pytest

from benchmarks.log_excerpts import EXCERPTS
from perfscope.sources.joblog import read_log, reading
from perfscope.sources.joblog.repeats.repeated_text import find_period
from tests.sources.joblog.test_record_lines import differences

KEPT = 24
SIZE = 100_000
#: Of Megatron's timers many lines are enough.
LEFT_OUT = {"megatron-bert": "log.timers"}
PATHS = sorted(EXCERPTS.glob("*.log"))
#: Each restart begins at a date further on, so that nothing is repeated.
DATED = b"2026-11-21 %02d:%02d:%02d step 1 of 7\n"


def texts_of(text: bytes, other: bytes) -> dict[str, bytes]:
    """Logs that repeat an excerpt."""
    lines = text.splitlines(keepends=True)
    again = text * (SIZE // len(text) + 1)
    return {
        "again": again,
        "again, and a part of it": again + b"".join(lines[: len(lines) // 2 + 1]),
        "again between others": other + again + other + text + other,
        "again, a part, and again": again + lines[-1] + again,
        "labelled": b"".join(b"[rank%d]:%s" % (n % 2, line) for n, line in enumerate(lines)) * (SIZE // len(text) + 1),
        "each line twice": b"".join(2 * line for line in lines) * (SIZE // len(text) // 2 + 1),
    }


@pytest.mark.parametrize("path", PATHS, ids=lambda path: path.stem)
def test_an_excerpt_again_and_again_is_read_as_if_each_were_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, path: Path
) -> None:
    monkeypatch.setattr(reading, "RECORDS_KEPT", KEPT)
    other = PATHS[(PATHS.index(path) + 1) % len(PATHS)].read_bytes()
    log = tmp_path / "run.log"
    wrong = {}
    for name, text in texts_of(path.read_bytes(), other).items():
        log.write_bytes(text)
        counted = read_log(log)
        with monkeypatch.context() as patch:
            patch.setattr(reading, "find_period", lambda _text: None)
            patch.setattr(reading._LogReader, "_bulk_reading", lambda _reader: None)
            read = read_log(log)
        left_out = LEFT_OUT.get(path.stem, "-")
        unlike = [each for each in differences(read, counted) if not each.startswith(left_out)]
        if unlike:
            wrong[name] = unlike
    assert not wrong


def test_most_excerpts_are_counted_and_not_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reading, "RECORDS_KEPT", KEPT)
    read_block = reading._LogReader._read_block
    read = 0

    def count(reader: reading._LogReader, text: bytes) -> None:
        nonlocal read
        read += len(text)
        read_block(reader, text)

    monkeypatch.setattr(reading._LogReader, "_read_block", count)
    few = 0
    for path in PATHS:
        text = path.read_bytes()
        log = tmp_path / "run.log"
        log.write_bytes(text * (1_000_000 // len(text)))
        read = 0
        read_log(log)
        few += read < log.stat().st_size // 2
    assert few > 0.9 * len(PATHS)


def test_a_period_is_the_shortest_of_whole_lines() -> None:
    assert find_period(b"a\nb\n" * 9000) == (4, 36_000)
    assert find_period(b"a\na\nb\n" * 9000 + b"a\nb\n") == (6, 54_000)
    assert find_period(b"ab" * 30_000) is None  # no line
    assert find_period(b"a\n" * 100) is None  # is read as fast


def test_text_that_goes_on_has_no_period() -> None:
    assert find_period(b"".join(DATED % (n // 3600, n // 60 % 60, n % 60) for n in range(4000))) is None


@pytest.mark.parametrize("lines", [b"step 1\nstep 2\nstep 3\n", b"one line\n", b"x" * 900 + b"\n"])
@pytest.mark.parametrize("rest", [b"", b"step 1\n", b"step 1", b"end of it\n"])
def test_the_repetitions_end_where_the_text_is_another(lines: bytes, rest: bytes) -> None:
    for times in (2000, 2001, 2047, 2500):
        text = lines * times + rest
        assert find_period(text) == (len(lines), times * len(lines))
