"""Traces of other exporters' files, read by several processes, with the damage of a reading in one piece."""

from __future__ import annotations

import gzip
import os
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from perfscope.sources.traces import apart, shares
from perfscope.sources.traces.parts import PartsDiffer
from perfscope.sources.traces.reader import read_trace
from perfscope.sources.traces.shares import divide, divide_text
from perfscope.tables.trace import BASIC_EVENTS, Events
from tests.sources.traces.test_parts import differences, joined, no_processes, text_of

__all__ = ["joined"]
_MEASURED = BASIC_EVENTS | Events.OPERATOR_TIMES | Events.CALLERS | Events.PRODUCTS


@pytest.fixture(autouse=True)
def small_pieces(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shares, "_SLICE_BYTES", 50_021)
    monkeypatch.setattr(shares, "READ_BYTES", 5_003)


def text() -> bytes:
    return text_of("traces/gloo2/rank0.pt.trace.json.gz")


def cut_or_changed(content: bytes, share: float) -> tuple[bytes, bytes]:
    position = int(len(content) * share)
    return content[:position], content[:position] + bytes([content[position] ^ 8]) + content[position + 1 :]


@pytest.mark.parametrize("share", [0.2, 0.5, 0.9])
def test_damage_to_a_stream_is_said_as_of_one_process(tmp_path: Path, joined: list[str], share: float) -> None:
    path, compressed = tmp_path / "rank0.json.gz", gzip.compress(text())
    for content in compressed, compressed + gzip.compress(b"more")[:-3]:
        for wrong in cut_or_changed(content, share):
            path.write_bytes(wrong)
            alone = read_trace(path, _MEASURED)
            assert alone.damage
            assert differences(read_trace(path, _MEASURED, processes=3), alone) == []
    assert not joined


@pytest.mark.parametrize("share", [0.2, 0.5, 0.9])
def test_damage_to_plain_json_is_said_as_of_one_process(tmp_path: Path, joined: list[str], share: float) -> None:
    path = tmp_path / "rank0.json"
    for wrong in cut_or_changed(text(), share):
        path.write_bytes(wrong)
        assert differences(read_trace(path, _MEASURED, processes=3), read_trace(path, _MEASURED)) == []
    assert joined


def write(path: Path, content: bytes) -> Path:
    path.write_bytes(gzip.compress(content) if path.suffix == ".gz" else content)
    return path


@pytest.mark.parametrize("name", ["rank0.json", "rank0.json.gz"])
def test_of_a_file_that_is_replaced_the_new_one_is_read(
    tmp_path: Path, joined: list[str], name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    path, other = write(tmp_path / name, text()), text_of("traces/gloo2/rank1.pt.trace.json.gz")
    expected = read_trace(write(tmp_path / f"other_{name}", other), _MEASURED)

    def replace(*arguments: Any) -> Any:
        write(tmp_path / f"new_{name}", other).replace(path)
        return no_processes(*arguments)

    monkeypatch.setattr(apart, "forked", replace)
    trace = read_trace(path, _MEASURED, processes=3)
    assert not joined
    assert trace.names == expected.names
    assert (trace.calls.start_ns == expected.calls.start_ns).all()


@pytest.mark.parametrize("name", ["rank0.json", "rank0.json.gz"])
def test_a_file_that_grows_is_noticed(tmp_path: Path, joined: list[str], name: str) -> None:
    path = write(tmp_path / name, text())
    divided = divide_text(str(path), 3)
    assert divided is not None
    with closing(divided):
        with path.open("ab") as file:
            file.write(b"\n")
        with pytest.raises(PartsDiffer):
            divided.reopened()
    assert not joined


def test_plain_json_that_is_written_to_while_it_is_read_is_noticed(tmp_path: Path, joined: list[str]) -> None:
    path = write(tmp_path / "rank0.json", text())
    divided = divide_text(str(path), 3)
    assert divided is not None
    with closing(divided):
        pieces = divided.share(1)
        next(pieces)
        os.utime(path, ns=(1, 1))
        with pytest.raises(PartsDiffer):
            list(pieces)
    assert not joined


def test_what_can_be_read_once_alone_is_read_as_one_stream(tmp_path: Path, joined: list[str]) -> None:
    os.mkfifo(tmp_path / "pipe.json")
    assert divide_text(str(tmp_path / "pipe.json"), 3) is None
    assert divide_text("s3://bucket/trace.json", 3) is None
    assert not joined


@pytest.mark.parametrize("count", [1, 2, 3, 100, 1000, 10_000])
@pytest.mark.parametrize("processes", [2, 3, 16, 128])
def test_shares_are_all_there_is_and_the_last_ones_are_small(count: int, processes: int) -> None:
    ranges = divide(count, processes)
    assert [unit for units in ranges for unit in units] == list(range(count))
    lengths = [len(units) for units in ranges]
    assert lengths == sorted(lengths, reverse=True)
    assert lengths[-1] <= max(2, -(-count // 4096))
    assert len(ranges) <= 4096
