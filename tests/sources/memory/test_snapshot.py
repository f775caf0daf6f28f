"""Snapshots of torch's allocator are read as they are, and hostile or damaged ones are refused."""

from __future__ import annotations

import pickle
import random
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from perfscope.errors import SourceError
from perfscope.sources.memory import read_snapshot
from perfscope.tables.memory import AllocatorHistory
from tests.analyzers.memory.snapshots import BACKWARD, FORWARD, LOSS, OPTIMIZER, Script

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
