"""A log that several processes read gives what one process reads in it."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from perfscope.sources.joblog import read_log, reading
from perfscope.sources.joblog.splitting import parallel
from perfscope.sources.joblog.splitting.split_block import SplitBlock
from perfscope.sources.joblog.text.blocks import read_blocks_between
from tests.sources.joblog.test_record_lines import differences

RANKS = 8
FIRST = 1_000_000
STEPS = 5_000
#: Sizes as small as these make several blocks of a log of two megabytes.
BUFFER = 1 << 17
RANGE = 4 * BUFFER - (1 << 12)
LINE = "[rank{rank}]:iter {step:07d}: loss 4.{loss:04d}, time 561.{digit}2ms\n"
WIDTH = len(LINE.format(rank=0, step=0, loss=0, digit=0))


def text_of_ranks(back_at: int | None, back: int, *, are_equal: bool) -> str:
    """Lines of the same width; from line ``back_at`` on, the rank that prints it is ``back`` steps behind the others."""
    lines = []
    for line in range(RANKS * STEPS):
        step, rank = divmod(line, RANKS)
        is_back = back_at is not None and line >= back_at and rank == back_at % RANKS
        step -= back * is_back
        loss = step % 1000 if are_equal else (step + rank) % 1000
        lines.append(LINE.format(rank=rank, step=FIRST + step, loss=loss, digit=step % 10))
    return "".join(lines)


def block_starts(path: Path, monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Where the blocks begin that other processes split."""
    begins: list[int] = []

    def split_between(
        split_path: Path, begin: int, end: int, split: parallel.TextSplitter
    ) -> Iterator[SplitBlock | bytes]:
        for start in range(begin, end, RANGE):
            buffer, offset = bytearray(BUFFER), start + -start % WIDTH
            for length in read_blocks_between(split_path, start, min(start + RANGE, end), buffer):
                begins.append(offset)
                offset += length
        yield from parallel.split_blocks_between(split_path, begin, end, split)

    with monkeypatch.context() as patch:
        patch.setattr(reading, "split_blocks_between", split_between)
        read_log(path)
    return begins


@pytest.mark.parametrize("are_equal", [True, False], ids=["equal lines", "other losses"])
@pytest.mark.parametrize("back", [3, 500])
@pytest.mark.parametrize("behind", [0, 3], ids=["the first line of a block", "the fourth line of a block"])
def test_a_rank_that_goes_back_between_two_blocks(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, behind: int, back: int, *, are_equal: bool
) -> None:
    monkeypatch.setattr(reading, "RECORDS_KEPT", 64)
    monkeypatch.setattr(reading, "_LARGE", 1 << 19)
    monkeypatch.setattr(parallel, "_BUFFER", BUFFER)
    monkeypatch.setattr(parallel, "_RANGE", RANGE)
    path = tmp_path / "run.log"
    path.write_text(text_of_ranks(None, 0, are_equal=are_equal))
    begins = block_starts(path, monkeypatch)
    assert len(begins) > 2
    path.write_text(text_of_ranks(begins[2] // WIDTH + behind, back, are_equal=are_equal))
    log = read_log(path)
    monkeypatch.setattr(reading, "_LARGE", 1 << 40)
    assert differences(log, read_log(path)) == []
    monkeypatch.setattr(reading._LogReader, "_bulk_reading", lambda _reader: None)
    monkeypatch.setattr(reading._LogReader, "_bulk_of_ranks", lambda _reader: None)
    assert differences(log, read_log(path)) == []
