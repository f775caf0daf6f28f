"""Histories that the hooks wrote are read whole, and of damaged ones what is intact."""

from __future__ import annotations

import gzip
import json
import os
import tracemalloc
from pathlib import Path

import pytest

from perfscope.errors import SourceError
from perfscope.sources.memory import read_histories, read_recorded, read_snapshot
from tests.conftest import ROOT

FIXTURE = ROOT / "fixtures" / "memory" / "pure.memory.jsonl.gz"


def lines() -> list[bytes]:
    return gzip.decompress(FIXTURE.read_bytes()).splitlines(keepends=True)


def write(folder: Path, content: bytes) -> Path:
    path = folder / "a.memory.jsonl"
    path.write_bytes(content)
    return path


def test_the_hooks_format_says_the_same_as_torchs_snapshot() -> None:
    recorded = read_recorded(FIXTURE)
    (snapshot,) = read_snapshot(FIXTURE.with_name("pure.pickle.gz"))
    began_us = recorded.header.started_ns // 1000 if recorded.header is not None else 0
    expected = snapshot.events.select(snapshot.events.times_us >= began_us)
    assert recorded.events.actions.tolist() == expected.actions.tolist()
    assert recorded.events.addresses.tolist() == expected.addresses.tolist()
    assert recorded.reserved_bytes == snapshot.reserved_bytes
    assert recorded.blocks.sizes.tolist() == snapshot.blocks.sizes.tolist()
    for ours, theirs in zip(recorded.events.stacks.tolist(), expected.stacks.tolist(), strict=True):
        named = [recorded.frames[frame] for frame in recorded.stacks[ours]] if ours >= 0 else []
        assert named == ([snapshot.frames[frame] for frame in snapshot.stacks[theirs]] if theirs >= 0 else [])
    assert {"weights", "optimizer"} <= set(recorded.end.roles)
    assert recorded.marks.names[1:3] == ("Gpt", "tokens")


def test_a_file_that_is_cut_off_is_read_up_to_there_and_says_so(tmp_path: Path) -> None:
    whole = lines()
    for count in range(1, len(whole)):
        (history,) = read_histories(write(tmp_path, b"".join(whole[:count])))
        assert any("cut off" in text for text in history.damage)
    (history,) = read_histories(write(tmp_path, b"".join(whole)[: len(b"".join(whole[:2])) + 50]))
    assert any("cannot be read" in text for text in history.damage)


def test_another_version_is_refused_by_its_name(tmp_path: Path) -> None:
    header = json.loads(lines()[0]) | {"schema": "perfscope/memory/9"}
    with pytest.raises(SourceError, match="another version: 'perfscope/memory/9'"):
        read_recorded(write(tmp_path, json.dumps(header).encode()))


@pytest.mark.parametrize("content", [b"", b"{}\n", b"not json\n", b'{"kind": "end", "events": 1}\n', b"\x80\x04}."])
def test_what_is_no_history_is_refused(tmp_path: Path, content: bytes) -> None:
    with pytest.raises(SourceError):
        read_recorded(write(tmp_path, content))


@pytest.mark.parametrize("suffix", ["memory.jsonl.gz", "pickle.gz"])
@pytest.mark.parametrize("content", [b'{"a":' * 100_000, bytes(40 << 20)])
def test_deep_nesting_and_a_gzip_bomb_are_a_sentence(tmp_path: Path, suffix: str, content: bytes) -> None:
    path = tmp_path / f"a.{suffix}"
    path.write_bytes(gzip.compress(content))
    tracemalloc.start()
    with pytest.raises(SourceError):
        read_histories(path)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 150 << 20


@pytest.mark.parametrize("name", ["a.memory.jsonl", "a.memory.jsonl.gz", "a.pickle", "a.pickle.gz"])
def test_a_fifo_is_not_waited_for(tmp_path: Path, name: str) -> None:
    os.mkfifo(tmp_path / name)
    with pytest.raises(SourceError, match="cannot be read"):
        read_histories(tmp_path / name)


@pytest.mark.parametrize(
    "change",
    [
        {"addresses": [1]},
        {"addresses": [2**70]},
        {"actions": "a"},
    ],
)
def test_columns_that_contradict_each_other_are_refused(tmp_path: Path, change: dict[str, object]) -> None:
    whole = lines()
    whole[1] = json.dumps(json.loads(whole[1]) | change).encode() + b"\n"
    with pytest.raises(SourceError, match=r"contradicts itself|no allocator's history"):
        read_recorded(write(tmp_path, b"".join(whole)))
