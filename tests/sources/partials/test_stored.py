"""A file of partials is whole and within its limits, or it is refused."""

from __future__ import annotations

import hashlib
import os
import tracemalloc
import zlib
from pathlib import Path

import msgspec
import pytest

from perfscope.sources.partials.header import SCHEMA, Header, Identity, Section
from perfscope.sources.partials.stored import Refused, from_bytes, pack_section, read_partials, to_bytes
from perfscope.sources.partials.values import Unstorable

TRACE = "run/traces/a.pt.trace.json.gz"
HEADER = Header(SCHEMA, "1", "code", (Identity("a", 1, "0"),), (), ("names",), ())
KIND = tuple[str, ...]


def content(header: Header = HEADER) -> bytes:
    return to_bytes(header, [pack_section("names", (TRACE, "gemm"), KIND, [TRACE])])


def sealed(header: object, body: bytes = b"", length: int | None = None) -> bytes:
    head = msgspec.json.encode(header)
    whole = b"PSPART1\n" + (len(head) if length is None else length).to_bytes(4, "little") + head + body
    return whole + hashlib.sha256(whole).digest()


def with_section(packed: bytes, unpacked: int) -> bytes:
    section = Section("names", len(packed), unpacked)
    return sealed(msgspec.structs.replace(HEADER, sections=(section,)), packed)


def test_the_paths_of_traces_are_those_at_the_time_of_reading() -> None:
    assert from_bytes(content()).unpack("names", KIND, ["/elsewhere/a"]) == ("/elsewhere/a", "gemm")


def test_a_path_in_a_sentence_is_not_stored() -> None:
    with pytest.raises(Unstorable, match="path"):
        pack_section("names", (f"{TRACE} is cut off",), KIND, [TRACE])


def test_a_file_that_is_cut_off_or_changed_anywhere_is_refused() -> None:
    whole = content()
    for end in range(len(whole)):
        with pytest.raises(Refused):
            from_bytes(whole[:end])
    for place in range(len(whole)):
        changed = bytearray(whole)
        changed[place] ^= 1
        with pytest.raises(Refused):
            from_bytes(bytes(changed))


def test_other_schemas_and_other_headers_are_refused() -> None:
    headers: list[object] = [
        msgspec.structs.replace(HEADER, schema="perfscope/partials/2"),
        {"schema": SCHEMA},
        msgspec.to_builtins(HEADER) | {"more": 1},
        [],
        "text",
        msgspec.structs.replace(HEADER, sections=(Section("a", 0, -1),)),
        msgspec.structs.replace(HEADER, sections=(Section("a", 2**40, 1),)),
        msgspec.structs.replace(HEADER, sections=tuple(Section(str(number), 0, 0) for number in range(65))),
        msgspec.structs.replace(HEADER, sections=(Section("a", 0, 0),) * 2),
        msgspec.structs.replace(HEADER, sections=tuple(Section(str(number), 0, 2**23) for number in range(5))),
        msgspec.structs.replace(HEADER, sections=(Section("a", 1, 1),)),
    ]
    for header in headers:
        with pytest.raises(Refused):
            from_bytes(sealed(header))
    for length in (2**32 - 1, 10**6, 0):
        with pytest.raises(Refused):
            from_bytes(sealed(HEADER, length=length))
    with pytest.raises(Refused):
        from_bytes(sealed(msgspec.Raw(b"[" * 200_000)))


def test_bombs_are_not_inflated() -> None:
    bomb = zlib.compress(bytes(2**28), 9)
    read_sizes = []
    for unpacked in (10, 2**23):
        stored = from_bytes(with_section(bomb, unpacked))
        tracemalloc.start()
        with pytest.raises(Refused, match="inflate"):
            stored.unpack("names", KIND, [TRACE])
        read_sizes.append(tracemalloc.get_traced_memory()[1])
        tracemalloc.stop()
    assert max(read_sizes) < 2**25


@pytest.mark.parametrize("packed", [b"", b"nonsense", zlib.compress(b"\x90")[:-1], zlib.compress(b"\x90") + b"more"])
def test_a_section_that_cannot_be_inflated_whole_is_refused(packed: bytes) -> None:
    with pytest.raises(Refused):
        from_bytes(with_section(packed, 1)).unpack("names", KIND, [TRACE])


def test_a_pipe_into_which_nobody_writes_is_refused_at_once(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe.partials")
    with pytest.raises(Refused, match="cannot be read: it is a FIFO"):
        read_partials(str(tmp_path / "pipe.partials"))


def test_a_file_that_is_missing_or_huge_is_refused(tmp_path: Path) -> None:
    with pytest.raises(Refused, match="cannot be read"):
        read_partials(str(tmp_path / "none.partials"))
    with pytest.raises(Refused, match="cannot be read"):
        read_partials(str(tmp_path))
    huge = tmp_path / "huge.partials"
    with huge.open("wb") as file:
        file.truncate(2**40)  # a hole
    with pytest.raises(Refused, match="larger"):
        read_partials(str(huge))
