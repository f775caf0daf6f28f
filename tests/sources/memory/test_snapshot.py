"""Snapshots of torch's allocator are read as they are, and hostile or damaged ones are refused."""

from __future__ import annotations

import gzip
import json
import os
import pickle
import random
import tracemalloc
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from perfscope.errors import SourceError
from perfscope.sources.memory import read_histories, read_recorded, read_snapshot
from perfscope.tables.memory import AllocatorHistory
from tests.analyzers.memory.snapshots import BACKWARD, FORWARD, LOSS, OPTIMIZER, Script
from tests.conftest import ROOT

LETTERS = {"alloc": b"a", "free_requested": b"f", "free_completed": b"c", "segment_alloc": b"S", "oom": b"o"}


def random_script(events: int, seed: int = 0) -> Script:
    chooser, script, live = random.Random(seed), Script(), list[int]()
    while len(script.trace) < events:
        if live and chooser.random() < 0.5:
            script.free(live.pop(chooser.randrange(len(live))))
        else:
            stack = chooser.choice([FORWARD, LOSS, OPTIMIZER, BACKWARD])
            live.append(script.allocate(chooser.choice([1, 200, 40_000, 1 << 20, 1 << 34]), stack))
    return script


def assert_same(history: AllocatorHistory, snapshot: dict[str, Any]) -> None:
    """The columns are the snapshot's, event by event, with their stacks."""
    events = history.events
    trace = snapshot["device_traces"][0]
    assert events.actions.tolist() == [LETTERS[event["action"]] for event in trace]
    assert events.addresses.tolist() == [event.get("addr", event.get("device_free")) for event in trace]
    assert events.sizes.tolist() == [event["size"] for event in trace]
    assert events.times_us.tolist() == [event["time_us"] for event in trace]
    for number, event in zip(events.stacks.tolist(), trace, strict=True):
        frames = [history.frames[frame] for frame in history.stacks[number]] if number >= 0 else []
        assert [tuple(frame) for frame in frames] == [
            (frame["filename"], frame["line"], frame["name"]) for frame in event["frames"]
        ]


@pytest.mark.parametrize("protocol", [0, 2, 5])
def test_every_event_is_read_with_its_stack_whatever_the_protocol(tmp_path: Path, protocol: int) -> None:
    script = random_script(3_000)
    (history,) = read_snapshot(script.write(tmp_path / "a.pickle", protocol))
    assert_same(history, script.snapshot())
    live = script.snapshot()["segments"][0]["blocks"]
    assert history.blocks.addresses.tolist() == [block["address"] for block in live]
    assert history.blocks.requested.tolist() == [block["requested_size"] for block in live]


def test_a_snapshot_may_hold_keys_that_are_not_known_and_events_of_other_kinds(tmp_path: Path) -> None:
    script = random_script(50)
    snapshot = script.snapshot()
    for index, event in enumerate(snapshot["device_traces"][0]):
        event["user_metadata"] = f"note {index}"
        event["pool_id"] = (0, index)
        event["elapsed"] = 0.5
    snapshot["external_annotations"] = [{"stage": "START", "name": "step", "time_us": 1}]
    path = tmp_path / "a.pickle"
    path.write_bytes(pickle.dumps(snapshot))
    (history,) = read_snapshot(path)
    assert_same(history, snapshot)


def test_old_snapshots_without_times_addresses_of_blocks_and_requested_sizes_are_read(tmp_path: Path) -> None:
    script = Script()
    script.allocate(1000)
    snapshot = script.snapshot()
    for event in snapshot["device_traces"][0]:
        del event["time_us"], event["compile_context"]
    (block,) = snapshot["segments"][0]["blocks"]
    frames = block.pop("frames")
    del block["address"], block["requested_size"]
    block["history"] = [{"addr": 1, "real_size": 1000, "frames": frames}]
    path = tmp_path / "a.pickle"
    path.write_bytes(pickle.dumps(snapshot))
    (history,) = read_snapshot(path)
    assert history.events.times_us.tolist() == [0]
    assert (history.blocks.requested.tolist(), history.blocks.stacks.tolist()) == ([1024], [0])


def test_a_snapshot_that_is_cut_off_anywhere_is_refused(tmp_path: Path) -> None:
    content = random_script(60).write(tmp_path / "a.pickle").read_bytes()
    path = tmp_path / "b.pickle"
    for length in range(0, len(content), 37):
        path.write_bytes(content[:length])
        with pytest.raises(SourceError, match=r"not a complete snapshot|no snapshot|holds more"):
            read_snapshot(path)


def test_a_snapshot_with_a_changed_byte_is_read_or_refused_but_nothing_else(tmp_path: Path) -> None:
    content = random_script(40).write(tmp_path / "a.pickle").read_bytes()
    path, chooser = tmp_path / "b.pickle", random.Random(0)
    for _ in range(300):
        changed = bytearray(content)
        changed[chooser.randrange(len(changed))] = chooser.randrange(256)
        path.write_bytes(changed)
        with suppress(SourceError):
            read_snapshot(path)


@pytest.mark.parametrize(
    ("value", "problem"),
    [
        ({"weights": [1, 2]}, "no snapshot of torch's allocator"),
        ([1, 2], "no snapshot of torch's allocator"),
        ({"segments": [{"address": -1, "total_size": 5, "blocks": []}]}, "version that is not known"),
        ({"segments": [{"address": 1, "total_size": 5, "blocks": [{"size": 9}]}]}, "version that is not known"),
        ({"segments": [], "device_traces": [[{"no": "action"}]]}, "version that is not known"),
        ({"segments": ["a"]}, "version that is not known"),
        ({"segments": [], "device_traces": [[{"action": "alloc", "addr": 1}]] * 65}, "65 devices"),
    ],
)
def test_other_pickles_are_named_for_what_they_are(tmp_path: Path, value: object, problem: str) -> None:
    path = tmp_path / "a.pickle"
    path.write_bytes(pickle.dumps(value))
    with pytest.raises(SourceError, match=problem):
        read_snapshot(path)


def test_a_list_that_names_one_block_very_often_ends_soon(tmp_path: Path) -> None:
    block = {"size": 1, "state": "active_allocated", "frames": []}
    segment = {"address": 0, "total_size": 100, "blocks": [block] * 100_000}
    path = tmp_path / "a.pickle"
    path.write_bytes(pickle.dumps({"segments": [segment] * 1000}))
    with pytest.raises(SourceError, match="outside of its segment"):
        read_snapshot(path)


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
