"""Blocks of text from whatever a job's output was written to."""

from __future__ import annotations

import gzip
from functools import partial
from pathlib import Path

import pytest

from perfscope.errors import SourceError
from perfscope.sources.joblog import reading
from perfscope.sources.joblog.reading import read_log
from perfscope.sources.joblog.text import is_binary, read_blocks, to_plain_text
from tests.ratios import assert_ratio


def whole(path: Path, size: int = 64) -> bytes:
    return b"".join(read_blocks(path, size))


def test_blocks_hold_whole_lines_and_lose_nothing(tmp_path: Path) -> None:
    text = b"".join(b"line %d %s\n" % (n, b"x" * (n % 90)) for n in range(500))
    (tmp_path / "a.log").write_bytes(text)
    parts = list(read_blocks(tmp_path / "a.log", 64))
    assert b"".join(parts) == text
    assert len(parts) > 100
    assert all(part.endswith(b"\n") for part in parts)


def test_a_cut_compressed_log_gives_what_came_before_the_cut(tmp_path: Path) -> None:
    text = b"".join(b"%d %d\n" % (n, n * 7919) for n in range(50_000))
    (tmp_path / "a.log.gz").write_bytes(gzip.compress(text)[:-2000])
    found = whole(tmp_path / "a.log.gz", 4096)
    assert text.startswith(found)
    assert len(found) > 100_000


def test_a_file_that_only_begins_like_gzip_is_named(tmp_path: Path) -> None:
    (tmp_path / "a.log").write_bytes(b"\x1f\x8bnonsense")
    with pytest.raises(SourceError, match="damaged gzip"):
        whole(tmp_path / "a.log")


def test_a_log_of_powershell_is_utf16(tmp_path: Path) -> None:
    (tmp_path / "a.log").write_bytes("step: 1\nstep: 2\n".encode("utf-16"))
    assert whole(tmp_path / "a.log") == b"step: 1\nstep: 2\n"


def test_a_hole_that_rotation_left_is_no_binary() -> None:
    assert not is_binary(b"\0" * 4096 + b"iteration 1\n" * 10)
    assert is_binary(b"\0" * 4096)


def test_colours_and_carriage_returns_go() -> None:
    assert to_plain_text(b"\x1b[32mstep: 1\x1b[39m\r 10%|#|\r\n") == b"step: 1\n 10%|#|\n"
    assert to_plain_text(b"\x1b]0;title\x07a\x1b[38;2;1;2;3mb") == b"ab"


HOSTILE = [b"%|", b"{'loss': ", b"step: 1  loss: 2  tps", b"\x1b]0;", b"\0", b"| iteration 7/ 9 | "]


@pytest.mark.parametrize("text", HOSTILE, ids=repr)
def test_of_a_line_of_ten_megabytes_only_the_ends_are_looked_at(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, text: bytes
) -> None:
    """Patterns see 16 KB of it, and the passes over all of it take no longer than others of its length."""
    path, plain, lengths = tmp_path / "run.log", tmp_path / "plain.log", list[int]()
    path.write_bytes(b"[NeMo I start\n" + text * (10_000_000 // len(text)) + b"\nend\n")
    plain.write_bytes(b"[NeMo I start\n" + b"x" * 10_000_000 + b"\nend\n")

    def plain_text(block: bytes) -> bytes:
        result = to_plain_text(block)
        lengths.append(len(result))
        return result

    monkeypatch.setattr(reading, "to_plain_text", plain_text)
    read_log(path)
    assert sum(lengths) < 1 << 15
    assert_ratio(partial(read_log, path), partial(read_log, plain), 30)


def test_both_ends_of_a_long_line_are_read() -> None:
    line = b"head" + b"x" * 100_000 + b"tail\n"
    plain = to_plain_text(b"before\n" + line + b"after\n")
    assert plain.startswith(b"before\nhead")
    assert plain.endswith(b"tail\nafter\n")
    assert len(plain) < 17_000
    assert to_plain_text(b"a\n" * 100_000) == b"a\n" * 100_000
