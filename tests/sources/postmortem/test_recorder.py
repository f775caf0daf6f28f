"""Dumps are read without unpickling, of any version of torch, and what is damaged is named."""

from __future__ import annotations

import json
import os
import pickle
from pathlib import Path
from typing import Any

import pytest

from perfscope.analyzers.postmortem.diagnosis import diagnose
from perfscope.analyzers.postmortem.places import Reason
from perfscope.errors import SourceError
from perfscope.sources.postmortem import read_dump, read_post_mortem
from tests.sources.postmortem.dumps import document, entry, write_dumps

ENTRIES = [entry(1), entry(2, "broadcast", 7, state="started"), entry(1, "send 0->1", p2p=True, state="scheduled")]


@pytest.mark.parametrize("protocol", [0, 1, 2, 3, 4, 5])
def test_a_pickle_of_any_protocol_and_json_are_the_same_dump(protocol: int, tmp_path: Path) -> None:
    (tmp_path / "pickled").write_bytes(pickle.dumps(document(ENTRIES), protocol=protocol))
    (tmp_path / "plain").write_text(json.dumps(document(ENTRIES)))
    dump, damage = read_dump(tmp_path / "pickled")
    assert (dump, damage) == read_dump(tmp_path / "plain")
    assert damage == []
    assert [(call.operation, call.sequence, call.is_p2p) for call in dump.calls] == [
        ("all_reduce", 1, False),
        ("send 0->1", 1, True),
        ("broadcast", 2, False),
    ]
    assert [(call.is_started, call.is_completed) for call in dump.calls] == [
        (True, True),
        (False, False),
        (True, False),
    ]
    assert dump.members == {"0": (0, 1)}
    assert dump.calls[0].frames[-1].line == 10


class Attack:
    def __reduce__(self) -> tuple[Any, ...]:
        return os.system, ("touch /tmp/perfscope-was-attacked",)


@pytest.mark.parametrize("content", [Attack(), {"entries": [Attack()]}, {"entries": [], "pg_config": Attack()}])
def test_a_dump_that_would_call_a_function_is_refused_and_nothing_is_called(content: object, tmp_path: Path) -> None:
    (tmp_path / "trace_0").write_bytes(pickle.dumps(content))
    with pytest.raises(SourceError, match=r"would call posix\.system|no dump of the Flight Recorder"):
        read_dump(tmp_path / "trace_0")
    assert not Path("/tmp/perfscope-was-attacked").exists()


@pytest.mark.parametrize("as_json", [False, True])
def test_a_half_written_dump_is_named_at_any_length(as_json: bool, tmp_path: Path) -> None:
    whole = (write_dumps(tmp_path / "w", {0: ENTRIES}, as_json=as_json) / "nccl_trace_rank_0").read_bytes()
    for length in (*range(0, len(whole) - 1, 97), len(whole) - 1):
        (tmp_path / "cut").write_bytes(whole[:length])
        with pytest.raises(SourceError, match="Flight Recorder"):
            read_dump(tmp_path / "cut")


@pytest.mark.parametrize(
    "content", [b"", b"hello", b"{}", b'{"entries": 3}', pickle.dumps([1]), pickle.dumps({"entries": {}}), b"\x80\x02."]
)
def test_another_file_is_no_dump(content: bytes, tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(content)
    with pytest.raises(SourceError, match="Flight Recorder"):
        read_dump(tmp_path / "file")


def test_entries_of_another_version_are_read_and_unreadable_ones_are_counted(tmp_path: Path) -> None:
    old = {"pg_id": 0, "seq_id": 5, "profiling_name": "nccl:all_gather", "time_created_ns": 9, "state": "completed"}
    new = {**entry(6), "something": {"new": [1]}, "process_group": None}
    broken = [{**entry(7), "profiling_name": None}, {**entry(8), "collective_seq_id": "8"}, "text"]
    (tmp_path / "dump").write_bytes(pickle.dumps({"entries": [old, new, *broken]}))
    dump, damage = read_dump(tmp_path / "dump")
    assert [(call.group, call.sequence, call.operation) for call in dump.calls] == [
        ("0", 5, "all_gather"),
        ("0", 6, "all_reduce"),
    ]
    assert damage == ["dump: 3 of 5 entries cannot be read"]


def test_an_entry_of_nccl2_is_over_where_it_is_retired(tmp_path: Path) -> None:
    entries = [entry(1, backend="nccl2"), entry(2, backend="nccl2", state="scheduled")]
    dump, damage = read_dump(write_dumps(tmp_path, {0: entries}) / "nccl_trace_rank_0")
    assert [(call.operation, call.is_completed) for call in dump.calls] == [("all_reduce", True), ("all_reduce", False)]
    assert damage == []


def batch(number: int, *operations: str, state: str, after: int = 7) -> list[dict[str, Any]]:
    """What NCCL's recorder holds of a batch of sends and receives: the batch itself has the number of a collective."""
    calls = [entry(number, name, p2p=True, state="scheduled") for name in operations]
    whole = {**entry(after, "coalesced", state=state), "p2p_seq_id": number, "input_sizes": [], "input_dtypes": []}
    return [{**call, "time_created_ns": 10**18 + number * 10 + index} for index, call in enumerate([*calls, whole])]


def test_the_state_of_a_batch_is_that_of_its_sends_and_receives_and_the_batch_is_no_collective(tmp_path: Path) -> None:
    entries = [*batch(1, "send 0->1", "send 0->1", state="completed"), *batch(2, "recv 0<-1", state="started")]
    folder = write_dumps(tmp_path, {0: [*entries, entry(8, state="scheduled")]})
    dump, damage = read_dump(folder / "nccl_trace_rank_0")
    assert damage == []
    assert [(call.operation, call.sequence, call.is_started, call.is_completed) for call in dump.calls] == [
        ("send 0->1", 1, True, True),
        ("send 0->1", 1, True, True),
        ("recv 0<-1", 2, True, False),
        ("all_reduce", 8, False, False),
    ]


def test_collectives_that_are_launched_together_stay_a_collective(tmp_path: Path) -> None:
    entries = [entry(1), *batch(3, "send 0->1", state="completed"), entry(8), entry(9, "coalesced", state="started")]
    entries[-1] |= {"p2p_seq_id": 3}
    dump, _ = read_dump(write_dumps(tmp_path, {0: entries}) / "nccl_trace_rank_0")
    assert [(call.operation, call.sequence) for call in dump.calls if not call.is_p2p] == [
        ("all_reduce", 1),
        ("all_reduce", 8),
        ("coalesced", 9),
    ]


def test_a_folder_of_dumps_with_one_that_is_damaged_gives_the_others(tmp_path: Path) -> None:
    folder = write_dumps(tmp_path, {0: ENTRIES, 1: ENTRIES, 2: ENTRIES})
    whole = (folder / "nccl_trace_rank_1").read_bytes()
    (folder / "nccl_trace_rank_1").write_bytes(whole[: len(whole) // 2])
    (folder / "notes.txt").write_text("mine")
    (folder / "core.4711").write_text("something of more than sixteen bytes")
    evidence = read_post_mortem(folder)
    assert {rank: state.dump is not None for rank, state in evidence.ranks.items()} == {0: True, 1: False, 2: True}
    assert evidence.world_size == 3
    assert sum("nccl_trace_rank_1 is not a complete dump" in text for text in evidence.damage) == 1
    answer = diagnose(evidence)
    assert (answer.reason, answer.ranks) == (Reason.UNKNOWN, ()), (
        "the rank did start, and nobody knows that all is well"
    )


def test_a_folder_without_dumps_is_an_error_of_one_line(tmp_path: Path) -> None:
    with pytest.raises(SourceError, match="holds no dump"):
        read_post_mortem(tmp_path)
    with pytest.raises(SourceError, match="neither a run nor a folder"):
        read_post_mortem(tmp_path / "none")
