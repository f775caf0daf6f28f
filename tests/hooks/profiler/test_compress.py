"""Compressed traces: one gzip member for every reader, with parts that can be inflated apart."""

from __future__ import annotations

import gzip
import io
import os
import random
import shutil
import subprocess
import sys
import zlib
from pathlib import Path
from types import ModuleType

import pytest
from isal import igzip, isal_zlib

from perfscope.hooks.profiler import compress, compressors
from perfscope.wire import trace_parts

LIBRARIES = [zlib, isal_zlib]
_TRACE = Path("fixtures/traces/single/rank0.pt.trace.json.gz")


@pytest.fixture(scope="module")
def text() -> bytes:
    return gzip.decompress(_TRACE.read_bytes())


def compressed(folder: Path, text: bytes, part_bytes: int, library: ModuleType = zlib) -> Path:
    plain, path = folder / "t.json", folder / "t.json.gz"
    plain.write_bytes(text)
    with plain.open("rb") as source, path.open("wb") as target:
        compress.write_parts(source, target, part_bytes, library)
    return path


def as_python_does(path: Path) -> bytes:
    with gzip.open(path) as file:
        return file.read()


def as_isal_does(path: Path) -> bytes:
    with igzip.open(path) as file:
        return bytes(file.read())


def as_browsers_do(path: Path) -> bytes:
    """Inflate the first member alone; nothing may stand behind it."""
    stream = zlib.decompressobj(31)
    text = stream.decompress(path.read_bytes())
    assert stream.eof
    assert not stream.unused_data
    return text


@pytest.mark.parametrize("library", LIBRARIES)
@pytest.mark.parametrize("part_bytes", [997, 65536, 1 << 20, 1 << 30])
def test_every_reader_inflates_what_was_compressed(
    tmp_path: Path, text: bytes, part_bytes: int, library: ModuleType
) -> None:
    path = compressed(tmp_path, text, part_bytes, library)
    assert as_browsers_do(path) == text
    assert as_python_does(path) == text
    assert as_isal_does(path) == text
    if shutil.which("gunzip"):
        assert subprocess.run(["gunzip", "-c", str(path)], capture_output=True, check=True).stdout == text


@pytest.mark.parametrize("library", LIBRARIES)
@pytest.mark.parametrize("text", [b"", b"{", b"[]"])
def test_files_that_hardly_hold_anything_are_compressed(tmp_path: Path, text: bytes, library: ModuleType) -> None:
    path = compressed(tmp_path, text, 1 << 20, library)
    assert as_browsers_do(path) == text
    assert as_python_does(path) == text


@pytest.mark.parametrize("library", LIBRARIES)
def test_the_index_says_where_each_part_is(tmp_path: Path, text: bytes, library: ModuleType) -> None:
    part_bytes = 700_001
    written = compressed(tmp_path, text, part_bytes, library).read_bytes()
    header = len(trace_parts.GZIP_HEADER)
    extra, subfield, room = trace_parts.EXTRA_FIELD.unpack_from(written, header)
    begin = header + trace_parts.EXTRA_FIELD.size
    index = written[begin : begin + room]
    assert written.startswith(trace_parts.GZIP_HEADER)
    assert (extra, subfield) == (room + 4, trace_parts.SUBFIELD)
    assert trace_parts.INDEX.unpack_from(index) == (part_bytes, len(text), len(written))
    offset = begin + room
    for number, (size, checksum) in enumerate(trace_parts.PART.iter_unpack(index[trace_parts.INDEX.size :])):
        upto = min((number + 1) * part_bytes, len(text))
        assert zlib.decompressobj(-15).decompress(written[offset : offset + size]) == text[number * part_bytes : upto]
        assert checksum == zlib.crc32(text[:upto])
        offset += size
    assert written[offset:] == trace_parts.END_OF_STREAM + trace_parts.TRAILER.pack(zlib.crc32(text), len(text))


def test_what_runs_by_itself_writes_what_the_reader_expects() -> None:
    assert compress._END_OF_STREAM == trace_parts.END_OF_STREAM
    assert (compress._SUBFIELD, compress._INDEX.format, compress._PART.format) == (
        trace_parts.SUBFIELD,
        trace_parts.INDEX.format,
        trace_parts.PART.format,
    )


def test_parts_add_next_to_nothing_to_a_file(tmp_path: Path, text: bytes) -> None:
    many = text * 4
    size = compressed(tmp_path, many, compress._PART_BYTES).stat().st_size
    assert size <= 1.01 * len(zlib.compress(many, compress._LEVEL))


def test_a_trace_of_more_parts_than_a_header_can_hold_gets_longer_parts(tmp_path: Path) -> None:
    text = random.Random(1).randbytes(compress._MOST_PARTS + 100)
    path = compressed(tmp_path, text, 1)
    assert as_browsers_do(path) == text
    assert as_isal_does(path) == text
    begin = len(trace_parts.GZIP_HEADER) + trace_parts.EXTRA_FIELD.size
    assert trace_parts.INDEX.unpack_from(path.read_bytes(), begin)[0] == 2


def test_a_file_that_grows_meanwhile_has_no_index(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    class Shorter:
        st_size = 10

    plain, target = tmp_path / "t.json", io.BytesIO()
    plain.write_bytes(b"0123456789" * 3)
    with plain.open("rb") as source:
        monkeypatch.setattr("perfscope.hooks.profiler.compress.os.fstat", lambda _: Shorter)
        compress.write_parts(source, target)
    assert gzip.decompress(target.getvalue()) == b"0123456789" * 3
    begin = len(trace_parts.GZIP_HEADER) + trace_parts.EXTRA_FIELD.size
    assert not any(target.getvalue()[begin : begin + trace_parts.INDEX.size])


def test_a_trace_is_replaced_by_its_compressed_file_at_once(tmp_path: Path, text: bytes) -> None:
    path = tmp_path / "rank0.pt.trace.json"
    path.write_bytes(text)
    compress.compress(str(path))
    assert [file.name for file in tmp_path.iterdir()] == ["rank0.pt.trace.json.gz"]
    assert as_python_does(tmp_path / "rank0.pt.trace.json.gz") == text


def test_the_library_that_is_installed_beside_perfscope_deflates(monkeypatch: pytest.MonkeyPatch) -> None:
    before = sys.path[:]
    monkeypatch.setenv("PERFSCOPE_MODULES", os.pathsep.join(compressors.list_folders()))
    assert compress.load_quick_library() is isal_zlib
    monkeypatch.setattr(compress, "_QUICK_LIBRARY", "perfscope_has_no_such_library")
    assert compress.load_quick_library() is zlib
    assert sys.path == before


@pytest.mark.parametrize("has_it", [False, True])
def test_a_compressor_takes_the_quick_library_where_it_is_there(
    tmp_path: Path, text: bytes, monkeypatch: pytest.MonkeyPatch, has_it: bool
) -> None:
    plain = tmp_path / "vm_1.1.pt.trace.json"
    plain.write_bytes(text)
    if has_it:
        monkeypatch.setenv("PERFSCOPE_MODULES", os.pathsep.join(compressors.list_folders()))
    monkeypatch.setattr(compress, "become_idle", lambda: None)
    monkeypatch.setattr(compress, "start_measuring", lambda traces: None)
    compress.main([str(plain)])
    written = plain.with_name(f"{plain.name}.gz").read_bytes()
    expected = compressed(tmp_path, text, compress._PART_BYTES, isal_zlib if has_it else zlib).read_bytes()
    assert written == expected
