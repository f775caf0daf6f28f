"""A pickle is read without importing, looking up or calling anything, whatever it holds, and soon."""

from __future__ import annotations

import copyreg
import os
import pickle
import struct
import tracemalloc
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from perfscope.sources.pickles import (
    Call,
    GlobalName,
    InertUnpickler,
    PersistentId,
    PickleDamage,
    PlainUnpickler,
    read_pickle,
)
from perfscope.sources.postmortem import read_dump
from tests.ratios import assert_ratio, count_to

PLAIN = (dict, list, tuple, str, bytes, int, float, bool, type(None), Call, GlobalName, PersistentId, object)
SYSTEM = b"\x8c\x02os\x8c\x06system\x93"


@pytest.fixture(autouse=True)
def _no_import(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing is imported, called by its name, or registered."""

    def refuse(*_: object, **__: object) -> None:
        raise AssertionError("the pickle reached Python")

    monkeypatch.setattr(os, "system", refuse)
    monkeypatch.setattr(pickle._Unpickler, "find_class", refuse)


def types_in(value: object) -> set[type]:
    todo, seen, types = [value], set[int](), set[type]()
    while todo:
        current = todo.pop()
        types.add(type(current))
        if id(current) in seen:
            continue
        seen.add(id(current))
        match current:
            case dict():
                todo += [*current, *current.values()]
            case list() | tuple():
                todo += current
            case Call():
                todo += [current.arguments, current.state, *current.items, *current.items.values()]
            case PersistentId(id=inside):
                todo.append(inside)
    return types


CALLS = {
    "reduce": b"\x80\x04" + SYSTEM + b"\x8c\x01x\x85R.",
    "newobj": b"\x80\x04" + SYSTEM + b"\x8c\x01x\x85\x81.",
    "newobj_ex": b"\x80\x04" + SYSTEM + b"\x8c\x01x\x85}\x92.",
    "inst": b"(S'x'\nios\nsystem\n.",
    "obj": b"(cos\nsystem\nS'x'\no.",
    "build after a call": b"cos\nsystem\n(tR}S'a'\nI1\nsb.",
    "a state with slots": b"cos\nsystem\n(tRN}S'a'\nI1\ns\x86b.",
    "items of a call": b"cos\nsystem\n(tR(I1\nI2\nu.",
    "a dict's subclass": b"cos\nsystem\n(tR(I1\nI2\nI3\ne.",
    "a name with dots": b"\x80\x04\x8c\x02os\x8c\x0fsystem.__call__\x93\x8c\x01x\x85R.",
    "getattr of getattr": b"cbuiltins\ngetattr\n(cbuiltins\ngetattr\nS'__class__'\ntR(S'x'\ntR.",
    "a persistent id": b"cos\nsystem\nQ.",
    "a name of the standard library's table": b"\x80\x04\x8c\x07copyreg\x8c\x0d__newobj_ex__\x93"
    + SYSTEM
    + b")}\x87R.",
}


@pytest.mark.parametrize("content", CALLS.values(), ids=CALLS)
def test_a_call_is_recorded_and_not_made(content: bytes) -> None:
    read = read_pickle(content)
    assert read.names
    assert types_in(read.value) <= set(PLAIN)
    assert not any(callable(value) for value in (read.value, *read.names))


def test_a_state_is_set_on_no_class() -> None:
    """BUILD of a name, not of a call: the standard library would set attributes of the class."""
    before = set(vars(GlobalName)), set(vars(Call))
    for target in (b"cos\nsystem\n", b"}", b"]", b"I1\n"):
        read_pickle(target + b"(S'text'\nI1\nS'__setstate__'\nI2\ndb.")
        read_pickle(target + b"N(S'text'\nI1\nd\x86b.")
    assert (set(vars(GlobalName)), set(vars(Call))) == before


@pytest.mark.parametrize("code", [b"\x82\x01", b"\x83\x01\x00", b"\x84\x01\x00\x00\x00"])
def test_the_extension_registry_is_not_asked(code: bytes) -> None:
    copyreg.add_extension("os", "system", 1)
    try:
        with pytest.raises(PickleDamage, match="opcode"):
            read_pickle(b"\x80\x02" + code + b"(tR.")
    finally:
        copyreg.remove_extension("os", "system", 1)


def test_what_names_calls_or_fills_is_not_the_standard_librarys() -> None:
    own = pickle._Unpickler.dispatch
    for code in b"ci\x93oR\x81\x92bPQ\x82\x83\x84}d\x8f\x90\x91sua\x95\x96\x97\x98e.":
        assert InertUnpickler.dispatch[code] is not own[code]
    assert len(InertUnpickler.dispatch) == 256


@pytest.mark.parametrize(
    "content",
    [
        b"Nr\xff\xff\xff\xff.",
        b"Np4294967295\n.",
        b"\x96" + struct.pack("<Q", 2**62) + b".",
        b"\x8e" + struct.pack("<Q", 2**62) + b".",
        b"\x8d" + struct.pack("<Q", 2**64 - 1) + b".",
        b"\x8b" + struct.pack("<i", 2**31 - 1) + b".",
        b"X" + struct.pack("<I", 2**32 - 1) + b".",
        b"T" + struct.pack("<i", -5) + b".",
        b"\x95" + struct.pack("<Q", 2**64 - 1) + b"N.",
        b"I" + b"9" * 5000 + b"\n.",
        b"F" + b"x" * 2**17,
        b"cos\nsystem",
        b"\x97\x98.",
    ],
)
def test_a_stated_size_takes_no_memory(content: bytes) -> None:
    tracemalloc.start()
    try:
        for reader in (InertUnpickler, PlainUnpickler):
            with suppress(PickleDamage):
                reader(content).read_value()
        assert tracemalloc.get_traced_memory()[1] < 2**20
    finally:
        tracemalloc.stop()


COSTLY = {
    "deep tuples as a key": b"}N" + b"\x85N0" * 150_000 + b"Ns.",
    "deep tuples in a set": b"\x8f(N" + b"\x85N0" * 150_000 + b"\x90.",
    "keys of one hash": b"}(" + b"".join(
        b"\x8a\x0a" + (number * (2**61 - 1)).to_bytes(10, "little") + b"N" for number in range(1, 100_000)
    ) + b"u.",
    "itself as a key": b"}q\x00h\x00h\x00s.",
    "calls in calls": b"ca\nb\nq\x00" + b"h\x00" * 150_000 + b"N" + b"\x85R" * 150_000 + b".",
    "states in states": b"ca\nb\nq\x00" + b"h\x00)R" * 150_000 + b"b" * 149_999 + b".",
    "deep lists": b"]" * 100_000 + b"a" * 99_999 + b".",
}  # fmt: skip


@pytest.mark.parametrize("content", COSTLY.values(), ids=COSTLY)
def test_keys_cost_no_hash_and_nesting_no_stack(content: bytes) -> None:
    assert_ratio(partial(read_pickle, content), count_to(10_000_000), 60)


def test_a_list_that_all_entries_share_is_read_once(tmp_path: Path) -> None:
    """Were it read for each, 10,000 entries of 100,000 shapes of 64 sizes would be 64 billion numbers."""
    sizes = [[1] * 64] * 100_000
    entries = [
        {"profiling_name": "nccl:x", "seq_id": number, "time_created_ns": number, "input_sizes": sizes}
        for number in range(10_000)
    ]
    (tmp_path / "trace_0").write_bytes(pickle.dumps({"entries": entries}))
    dump, _ = assert_ratio(partial(read_dump, tmp_path / "trace_0"), count_to(10_000_000), 60)
    assert len(dump.calls[-1].input_sizes) == 100_000


@pytest.mark.parametrize(
    "value",
    [
        {"a": [1, -2, 2**70, 1.5, None, True], "b": ("x", b"y"), "3": {}, "ä\ud800": "\n'"},
        [{}, [], (), "", 0, -1, 255, 65536, 2**31, -(2**31)],
    ],
)
@pytest.mark.parametrize("protocol", range(pickle.HIGHEST_PROTOCOL + 1))
def test_plain_values_are_what_python_reads(value: Any, protocol: int) -> None:
    content = pickle.dumps(value, protocol)
    if protocol > 2 or b"encode" not in content:  # bytes are a call in old protocols
        assert read_pickle(content).value == PlainUnpickler(content).read_value().value == value


@settings(max_examples=100, deadline=None)
@given(st.lists(st.sampled_from([bytes([code]) for code in range(256)] + [b"cos\nsystem\n", SYSTEM]), max_size=60))
def test_random_opcodes_give_inert_values_or_damage(codes: list[bytes]) -> None:
    content = b"}](NI1\n" + b"".join(codes) + b"."
    for reader in (InertUnpickler, PlainUnpickler):
        try:
            value = reader(content).read_value().value
        except PickleDamage:
            continue
        assert types_in(value) <= set(PLAIN)
