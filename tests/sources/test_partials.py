"""What is stored comes back as it is, or is not stored; what is read is whole and of its type, or is refused."""

from __future__ import annotations

import os
import struct
import tracemalloc
import zlib
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum
from pathlib import Path
from typing import NamedTuple

import msgspec
import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from perfscope.sources.partials import (
    Identity,
    Refused,
    Stored,
    Unstorable,
    from_bytes,
    pack_value,
    read_partials,
    to_bytes,
    unpack_value,
)
from perfscope.tables.columns import Int64
from tests.ratios import assert_ratio, count_to

DTYPES = ("?", "i1", "i2", "i4", "i8", "u1", "u2", "u4", "u8", "f4", "f8")


class Phase(Enum):
    FORWARD = "forward"


class Term(NamedTuple):
    name: str
    ns: int


@dataclass(frozen=True, slots=True, eq=False)
class Partial:
    rank: int | None
    share: float
    phase: Phase
    terms: tuple[Term, ...]
    ends_ns: Int64
    kinds: npt.NDArray[np.int16 | np.int32]
    names: dict[tuple[str, int], int] = field(default_factory=dict)
    groups: Mapping[str, Int64] = field(default_factory=dict)


PARTIAL = Partial(
    3,
    0.25,
    Phase.FORWARD,
    (Term("gemm", 2**63 - 1),),
    np.array([-(2**63), 2**63 - 1] * 8),
    np.arange(9, dtype=np.int16),
    {("gemm", 1): -5},
    {"dp": np.arange(3)},
)


def refuses(content: bytes, kind: object = Partial) -> bool:
    with pytest.raises(ValueError, match=r"."):
        unpack_value(content, kind)
    return True


def test_a_partial_comes_back_with_the_types_of_its_fields() -> None:
    content = pack_value((PARTIAL,), tuple[Partial, ...] | None)
    members = unpack_value(content, tuple[Partial, ...] | None)
    assert isinstance(members, tuple)
    again: Partial = members[0]
    assert again.terms == PARTIAL.terms
    assert isinstance(again.terms[0], Term)
    assert again.phase is Phase.FORWARD
    assert again.kinds.dtype == np.int16
    assert again.kinds.flags.writeable
    assert np.array_equal(again.ends_ns, PARTIAL.ends_ns)
    assert again.names == PARTIAL.names
    assert pack_value((again,), tuple[Partial, ...] | None) == content


@settings(deadline=None)
@given(st.sampled_from(DTYPES), st.binary(max_size=200), st.sampled_from([(-1,), (-1, 2), (2, -1, 1)]))
def test_every_array_of_numbers_comes_back(kind: str, content: bytes, shape: tuple[int, ...]) -> None:
    size = np.dtype(kind).itemsize
    whole = content[: len(content) // (2 * size) * 2 * size]
    array = np.frombuffer(bytes(byte & 1 for byte in whole) if kind == "?" else whole, kind).reshape(shape)
    again = unpack_value(pack_value(array, npt.NDArray[array.dtype.type]), npt.NDArray[array.dtype.type])  # type: ignore[name-defined]
    assert isinstance(again, np.ndarray)
    assert again.flags.writeable
    assert again.dtype == array.dtype
    assert again.shape == array.shape
    assert again.tobytes() == array.tobytes()


@pytest.mark.parametrize(
    "value",
    [
        np.array([object()]),
        np.array(["text"]),
        np.ma.masked_array([1, 2], [True, False]),
        np.zeros(3, [("a", "i8")]),
        np.array(["2020"], "M8[D]"),
    ],
)
def test_arrays_of_anything_else_are_not_stored(value: object) -> None:
    with pytest.raises(Unstorable):
        pack_value(value, npt.NDArray[np.int64])


@pytest.mark.parametrize(("value", "kind"), [(1, float), (np.int64(3), int), (2**65, int)])
def test_what_would_come_back_as_something_else_is_not_stored(value: object, kind: object) -> None:
    with pytest.raises(Unstorable):
        pack_value(value, kind)


@pytest.mark.parametrize("number", [float("nan"), float("inf"), -float("inf")])
@pytest.mark.parametrize("form", [">Bd", ">Bf"])
def test_a_number_that_is_infinite_or_none_is_neither_stored_nor_read(number: float, form: str) -> None:
    with pytest.raises(Unstorable, match="infinite, or none"):
        pack_value({"a": (1, number)}, dict[str, tuple[int, float]])
    content = struct.pack(form, 0xCB if form == ">Bd" else 0xCA, number)
    assert refuses(content, float)
    assert refuses(b"\x92\x01" + content, tuple[int, float])
    assert refuses(b"\x81\x01" + content, dict[int, float])
    assert refuses(b"\x81" + content + b"\x01", dict[float, int])


def test_an_array_of_other_numbers_than_the_type_says_is_refused() -> None:
    assert refuses(pack_value(np.zeros(3), npt.NDArray[np.float64]), Int64)
    assert refuses(msgspec.msgpack.encode([1, 2]), Int64)


@pytest.mark.parametrize(
    "block",
    [
        (),
        ("<i8", (1,)),
        ("<c8", (1,), bytes(8)),  # no such type
        ("|O", (1,), bytes(8)),
        ("<i8", (2,), bytes(8)),  # two numbers, bytes of one
        ("<i8", (-1,), bytes(8)),
        ("<i8", (2**63, 2**63), bytes(8)),
        ("<i8", (2**32, 0), bytes(8)),
        ("|b1", (1,), b"\7"),  # a truth value of 7
    ],
)
def test_a_block_that_is_not_an_array_is_refused(block: object) -> None:
    packed = msgspec.msgpack.encode(msgspec.msgpack.Ext(1, msgspec.msgpack.encode(block)))
    assert refuses(packed, Int64)
    assert refuses(packed, npt.NDArray[np.bool_])


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"\xdd\xff\xff\xff\xff" + b"\1" * 99,  # four thousand million members
        b"\xdf\xff\xff\xff\xff" + b"\1" * 99,
        b"\xdb\xff\xff\xff\xff" + b"a" * 99,
        b"\xc9\xff\xff\xff\xff\1" + bytes(99),
        b"\x91" * 500_000 + b"\1",  # nested
        msgspec.msgpack.encode(msgspec.msgpack.Ext(99, b"cos\nsystem\n")),
        msgspec.msgpack.encode({"rank": 1}),
        msgspec.msgpack.encode({"rank": "one"}),
        struct.pack(">BQ", 0xCF, 2**64 - 1),
    ],
)
def test_hostile_bytes_are_refused(content: bytes) -> None:
    assert refuses(content, Partial)
    assert refuses(content, tuple[Partial, ...])


def stored() -> Stored:
    names = msgspec.Raw(pack_value(("gemm",), tuple[str, ...]))
    return Stored("1", "code", (Identity("a", 1, "0"),), 3, None, msgspec.Raw(b"\xc0"), {"names": names})


def packed(value: object) -> bytes:
    return b"PSPART4\n" + zlib.compress(msgspec.msgpack.encode(value))


def test_a_file_that_is_cut_off_or_changed_anywhere_is_refused() -> None:
    whole = to_bytes(stored())
    assert unpack_value(bytes(from_bytes(whole).partials["names"]), tuple[str, ...]) == ("gemm",)
    for end in range(len(whole)):
        with pytest.raises(Refused):
            from_bytes(whole[:end])
    for place in range(len(whole)):
        changed = bytearray(whole)
        changed[place] ^= 1
        with pytest.raises(Refused):
            from_bytes(bytes(changed))
    with pytest.raises(Refused):
        from_bytes(whole + b"more")


def test_bombs_are_not_inflated() -> None:
    bomb = b"PSPART4\n" + zlib.compress(bytes(2**28), 9)
    tracemalloc.start()
    with pytest.raises(Refused, match="inflates to more"):
        from_bytes(bomb)
    assert tracemalloc.get_traced_memory()[1] < 2**27
    tracemalloc.stop()


def test_a_pipe_into_which_nobody_writes_is_refused_at_once(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe.partials")
    with pytest.raises(Refused, match="cannot be read: it is a FIFO"):
        read_partials(str(tmp_path / "pipe.partials"))


def test_a_file_that_is_missing_or_huge_or_of_before_is_refused(tmp_path: Path) -> None:
    with pytest.raises(Refused, match="cannot be read"):
        read_partials(str(tmp_path / "none.partials"))
    with pytest.raises(Refused, match="cannot be read"):
        read_partials(str(tmp_path))
    huge = tmp_path / "huge.partials"
    with huge.open("wb") as file:
        file.truncate(2**40)  # a hole
    with pytest.raises(Refused, match="larger"):
        read_partials(str(huge))
    huge.write_bytes(b"PSPART1\n" + bytes(100))
    with pytest.raises(Refused, match="format"):
        read_partials(str(huge))


def test_an_array_of_a_million_axes_is_refused_at_once() -> None:
    """Their product has millions of digits, and takes an hour."""
    block = msgspec.msgpack.encode(("<i8", [2**62] * 100_000, b""))
    content = msgspec.msgpack.encode(msgspec.msgpack.Ext(1, block))

    def refuse() -> None:
        with pytest.raises(ValueError, match="a shape that perfscope does not write"):
            unpack_value(content, npt.NDArray[np.int64])

    assert_ratio(refuse, count_to(10_000_000), 2)
