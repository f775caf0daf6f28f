"""Files that were made to harm their reader: each is answered soon, and named."""

from __future__ import annotations

import json
import os
import socket
import struct
import zipfile
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

import pytest
import torch
from safetensors.torch import save_file

from perfscope.sources.checkpoints.checkpoint import read_checkpoint
from perfscope.sources.checkpoints.listing import list_files
from perfscope.sources.checkpoints.torch_files import read_torch_file
from perfscope.sources.pickles import InertUnpickler
from tests.commands.report_cli import run
from tests.ratios import assert_ratio, count_to

Result = TypeVar("Result")

MEGABYTES_4 = 4 * 2**20
METADATA_CLASS = b"\x80\x04\x8c\x25torch.distributed.checkpoint.metadata\x8c\x08Metadata\x93q\x00)\x81"


def answer_soon(work: Callable[[], Result]) -> Result:
    """The answer to a hostile file, which costs no more than a sixth of a second of counting, sixty times.

    Such files used to take half a minute and more on the machine where the counting takes that long.
    """
    return assert_ratio(work, count_to(10_000_000), 60)


def write_pickle(path: Path, content: bytes, compression: int = zipfile.ZIP_STORED) -> None:
    with zipfile.ZipFile(path, "w", compression) as archive:
        archive.writestr("archive/data.pkl", content)


def tensors_of_one_key(count: int, key_bytes: int, shape: bytes) -> bytes:
    """Many tensors that share one key and one shape through the memo."""
    head = b"\x80\x04\x8c\x0ctorch._utils\x8c\x12_rebuild_tensor_v2\x93q\x00\x8c\x05torch\x8c\x0cFloatStorage\x93q\x01"
    key = b"X" + struct.pack("<I", key_bytes) + b"k" * key_bytes + b"q\x02"
    entry = b"h\x02h\x00((\x8c\x07storageh\x01\x8c\x010\x8c\x03cpuK\x00tQK\x00h\x03)\x89NtR"
    return head + key + shape + b"q\x030000}(" + entry * count + b"u."


def getattr_chain() -> bytes:
    head = b"\x80\x04\x8c\x08builtins\x8c\x07getattr\x93q\x000\x8c\x05torch\x8c\x01x\x93q\x010"
    return head + b"h\x00h\x01\x8c\x08abcdefgh\x86Rq\x010" * 200_000 + b"N."


def long_names() -> bytes:
    names = b"".join(b"h\x00\x8c\x07%07d\x93" % number for number in range(250_000))
    return b"\x80\x04X" + struct.pack("<I", 2**20) + b"a" * 2**20 + b"q\x000" + names + b"."


PICKLES = {
    "nested lists": (b"\x80\x02" + b"]" * 200_000 + b"a" * 199_999 + b".", "nested deeper than 64 levels"),
    "nested dicts": (b"\x80\x02" + b"}N" * 200_000 + b"}" + b"s" * 200_000 + b".", "nested deeper than 64 levels"),
    "attributes of attributes": (getattr_chain(), "names a function in"),
    "long names": (long_names(), "names a function in 1,048,576 characters"),
    "long keys": (tensors_of_one_key(30_000, 10**6, b"K\x00\x85"), "lacks the storage 0"),
}


class TestCraftedPickles:
    """The list of tensors of a file of torch.save."""

    @pytest.mark.parametrize("name", PICKLES)
    def test_is_answered_soon(self, tmp_path: Path, name: str) -> None:
        content, problem = PICKLES[name]
        write_pickle(tmp_path / "model.pt", content)
        checkpoint = answer_soon(partial(read_checkpoint, tmp_path))
        assert problem in " ".join(checkpoint.damage)

    def test_too_many_opcodes_are_not_read(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(InertUnpickler, "most_opcodes", 1000)
        write_pickle(tmp_path / "model.pt", b"\x80\x02](" + b"N" * 2000 + b"e.", zipfile.ZIP_DEFLATED)
        assert "has more than 1,000 opcodes" in " ".join(read_checkpoint(tmp_path).damage)

    def test_a_compressed_pickle_is_not_unpacked(self, tmp_path: Path) -> None:
        """Twenty kilobytes would become twenty million dicts, and 3.6 GB."""
        write_pickle(tmp_path / "model.pt", b"\x80\x02(" + b"}" * 19_900_000 + b"l.", zipfile.ZIP_DEFLATED)
        checkpoint = answer_soon(partial(read_checkpoint, tmp_path))
        assert "is a zip bomb: its data.pkl is packed into" in " ".join(checkpoint.damage)

    @pytest.mark.parametrize(
        ("locator", "directory", "problem"),
        [
            (b"", 17 * 2**20, "zip directory of 17,825,792 bytes"),
            (struct.pack("<4sLQL", b"PK\x06\x07", 0, 0, 2), 0, "not a complete zip archive"),
        ],
    )
    def test_an_end_that_no_file_of_torch_has(
        self, tmp_path: Path, locator: bytes, directory: int, problem: str
    ) -> None:
        end = struct.pack("<4s4H2LH", b"PK\x05\x06", 0, 0, 1, 1, directory, 0, 0)
        (tmp_path / "model.pt").write_bytes(b"PK\x03\x04" + bytes(100) + locator + end)
        assert problem in " ".join(read_checkpoint(tmp_path).damage)

    def test_a_key_that_is_no_text(self, tmp_path: Path) -> None:
        """Python writes no number of more than 4,300 digits."""
        key = b"\x8b" + struct.pack("<i", 4000) + b"\x7f" * 4000
        rebuild = b"ctorch._utils\n_rebuild_tensor_v2\n(("
        storage = b"\x8c\x07storagectorch\nFloatStorage\n" + key + b"NK\x04tQ"
        write_pickle(tmp_path / "model.pt", b"\x80\x04" + rebuild + storage + b"K\x00K\x04\x85K\x01\x85\x89NtR.")
        assert read_torch_file(tmp_path / "model.pt").tensors == ()

    def test_calls_before_the_damage_are_named(self, tmp_path: Path) -> None:
        """Loading it would call the function, and fail only then."""
        write_pickle(tmp_path / "model.pt", b"cos\nsystem\n(S'x'\ntR0\xff")
        checkpoint = read_checkpoint(tmp_path)
        assert checkpoint.files[0].dangerous_calls == ("os.system",)
        assert "opcode b'\\xff'" in " ".join(checkpoint.damage)


class TestCraftedMetadata:
    """The ``.metadata`` of a distributed checkpoint, which torch unpickles."""

    @pytest.mark.parametrize(
        ("content", "problem"),
        [
            (b"cos\nsystem\n(S'true'\ntR.", ".metadata would call os.system when it is loaded"),
            (METADATA_CLASS + b"cos\nsystem\n(S'true'\ntR", ".metadata would call os.system when it is loaded"),
            (bytes(range(256)) * 2**14, "is not the metadata of a distributed"),
            (METADATA_CLASS + b"}(\x8c\x13state_dict_metadataNub.", "lists no tensors"),
        ],
    )
    def test_is_named_soon(self, tmp_path: Path, content: bytes, problem: str) -> None:
        (tmp_path / ".metadata").write_bytes(content)
        (tmp_path / "__0_0.distcp").write_bytes(bytes(10))
        checkpoint = answer_soon(partial(read_checkpoint, tmp_path))
        assert problem in " ".join(checkpoint.damage)


def write_header(path: Path, header: Any, data: int) -> None:
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    path.write_bytes(struct.pack("<Q", len(text)) + text + bytes(data))


def entry(start: int, stop: int, shape: list[int] | None = None) -> dict[str, Any]:
    return {"dtype": "U8", "shape": [stop - start] if shape is None else shape, "data_offsets": [start, stop]}


class TestCraftedSafetensors:
    """Headers that the format's own library refuses, too."""

    @pytest.mark.parametrize(
        ("header", "data", "problem"),
        [
            ({"a": entry(0, 100), "b": entry(50, 150)}, 150, "has overlapping tensors: 'a' and 'b'"),
            ({f"t{number}": entry(0, 100) for number in range(100)}, 100, "has overlapping tensors: 't0' and 't1'"),
            ({"a": entry(0, 100), "b": entry(200, 300)}, 300, "has 100 bytes before 'b' of no tensor"),
            ({"a": entry(0, 100)}, 3000, "has 2,900 bytes of no tensor at its end"),
            ({"a": {"dtype": "F32", "shape": [10], "data_offsets": [0, 100]}}, 100, "cannot be right"),
            (b'{"a":{"dtype":"U8","shape":[true],"data_offsets":[false,true]}}', 1, "cannot be right"),
            ({"a": entry(0, 1, [2**63 - 1] * 200_000)}, 1, "cannot be right"),
            (b"[" * MEGABYTES_4, 0, "is not JSON"),
            (b'{"a":{"dtype":"U8","shape":[' + b"9" * MEGABYTES_4 + b"]}}", 0, "is not JSON"),
        ],
    )
    def test_is_named_soon(self, tmp_path: Path, header: Any, data: int, problem: str) -> None:
        write_header(tmp_path / "model.safetensors", header, data)
        checkpoint = answer_soon(partial(read_checkpoint, tmp_path))
        assert problem in " ".join(checkpoint.damage)


class TestWhatIsNoFile:
    """FIFOs, sockets, devices, loops of links, and files that vanish."""

    @pytest.mark.parametrize(
        "name",
        ["model.pt", ".metadata", "latest", "model.safetensors", "model.safetensors.index.json", "trainer_state.json"],
    )
    def test_a_fifo_is_named_and_not_opened(
        self, tmp_path: Path, capsys: pytest.CaptureFixture[str], name: str
    ) -> None:
        os.mkfifo(tmp_path / name)
        write_header(tmp_path / "adapter_model.safetensors", {"a": entry(0, 9)}, 9)
        answer = answer_soon(partial(run, capsys, "checkpoint", tmp_path))
        assert answer.code == 4
        assert f"{name} is a FIFO; it is not read" in answer.err

    def test_a_link_to_a_device_and_a_socket(self, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
        (tmp_path / "model.pt").symlink_to("/dev/zero")
        with socket.socket(socket.AF_UNIX) as server:
            server.bind(os.fsencode(os.path.relpath(tmp_path / "optimizer.pt")))
            text = run(capsys, "checkpoint", tmp_path).err
        assert "model.pt is a device; it is not read" in text
        assert "optimizer.pt is a socket; it is not read" in text

    def test_loops_of_links_and_links_around_the_folder_end(self, tmp_path: Path) -> None:
        folder = tmp_path / "outer" / "c"
        folder.mkdir(parents=True)
        write_header(folder / "model.safetensors", {"a": entry(0, 9)}, 9)
        (folder / "self").symlink_to(".")
        (folder / "a").symlink_to("b")
        (folder / "b").symlink_to("a")
        (folder / "up").symlink_to("../..")
        (folder / "root").symlink_to("/")
        listed = list_files(folder)
        assert list(listed.sizes) == ["model.safetensors"]
        assert listed.unreadable["up"] == "is a link to a folder around this one; it is not followed"
        assert "root" in listed.unreadable
        assert set(listed.broken) == {"a", "b"}

    def test_a_tracker_that_names_no_number(self, tmp_path: Path) -> None:
        (tmp_path / "latest_checkpointed_iteration.txt").write_text("\N{SUPERSCRIPT TWO}")
        write_header(tmp_path / "model.safetensors", {"a": entry(0, 9)}, 9)
        assert len(read_checkpoint(tmp_path).files) == 2

    def test_a_folder_three_hundred_deep(self, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
        (tmp_path / "/".join(["d"] * 300)).mkdir(parents=True)
        answer = run(capsys, "checkpoint", tmp_path)
        assert answer.code == 1
        assert "folders deep; it is not read" in answer.err

    def test_a_name_with_escapes_does_not_reach_the_terminal(
        self, tmp_path: Path, capsys: pytest.CaptureFixture[str]
    ) -> None:
        (tmp_path / "mo\x1b[31mdel.pt").write_bytes(b"x")
        answer = run(capsys, "checkpoint", tmp_path)
        assert "\x1b" not in answer.out + answer.err
        assert "mo\\x1b[31mdel.pt is not a torch.save file" in answer.err


NOTHING = "no element: there are names and shapes, but no values to load"


def save(path: Path, tensors: dict[str, torch.Tensor], *, legacy: bool = False) -> None:
    if path.suffix == ".safetensors":
        save_file(tensors, path)
    else:
        torch.save(tensors, path, _use_new_zipfile_serialization=not legacy)


@pytest.mark.parametrize("name", ["model.pt", "model.safetensors"])
def test_tensors_without_an_element_are_named(tmp_path: Path, capsys: pytest.CaptureFixture[str], name: str) -> None:
    save(tmp_path / name, {"w": torch.empty(3, 0), "v": torch.empty(0, dtype=torch.bfloat16)})
    answer = answer_soon(partial(run, capsys, "checkpoint", tmp_path))
    assert answer.code == 4
    assert f"its 2 tensors have {NOTHING}" in answer.err
    assert "no tensor has an element, so that there is no parameter to count" in answer.out
    assert "From the tables of contents" in answer.out


def test_a_storage_without_its_bytes_is_named(tmp_path: Path) -> None:
    save(tmp_path / "whole.pt", {"w": torch.ones(4, 4)})
    with zipfile.ZipFile(tmp_path / "whole.pt") as whole, zipfile.ZipFile(tmp_path / "model.pt", "w") as emptied:
        for name in whole.namelist():
            emptied.writestr(name, b"" if "/data/" in name else whole.read(name))
    assert read_checkpoint(tmp_path / "model.pt").damage == ("model.pt holds 0 bytes for a storage of 64",)
