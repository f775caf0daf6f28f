"""Damaged and malicious files: they are reported, never loaded, and never end in another error."""

from __future__ import annotations

import contextlib
import os
import pickle
import struct
import zipfile
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from perfscope.sources.checkpoints.checkpoint import find_dangerous_calls, read_checkpoint
from perfscope.sources.checkpoints.listing import FileDamage
from perfscope.sources.checkpoints.torch_files import read_torch_file
from tests.commands.report_cli import run
from tests.conftest import ROOT
from tests.sources.checkpoints.checkpoint_files import FIXTURES, kinds, sizes_of, write_safetensors


class Calls:
    """An object whose pickle calls a function when it is loaded."""

    def __init__(self, function: Any, *arguments: Any) -> None:
        self.call = (function, arguments)

    def __reduce__(self) -> Any:
        return self.call


class TestHostileFiles:
    def test_a_call_of_the_system_is_named_and_never_made(
        self, tmp_path: Path, capsys: pytest.CaptureFixture[str]
    ) -> None:
        import torch

        marker = tmp_path / "was_called"
        (tmp_path / "c").mkdir()
        state = {"module": {"w": torch.zeros(3)}, "x": Calls(os.system, f"touch {marker}")}
        torch.save(state, tmp_path / "c" / "mp_rank_00_model_states.pt")
        answer = run(capsys, "checkpoint", tmp_path / "c")
        assert answer.code == 4
        assert "would call posix.system when it is loaded" in answer.err
        assert not marker.exists()

    def test_a_dangerous_function_is_told_by_its_name_however_it_is_reached(self) -> None:
        dangerous = ["", "builtins.eval", "os.system", "posix.system", "torch.hub.load", "torch.serialization.os.x"]
        harmless = [
            "builtins.getattr",
            "collections.OrderedDict",
            "megatron.Kind.GPT",
            "torch._utils._rebuild_tensor_v2",
        ]
        found = find_dangerous_calls([*dangerous, *harmless])
        assert found == ("a function with a computed name", *dangerous[1:])

    def test_an_enum_is_no_danger(self, tmp_path: Path) -> None:
        content = b"\x80\x04\x8c\x08builtins\x8c\x07getattr\x93\x8c\x08megatron\x8c\x04Kind\x93\x8c\x03GPT\x86R."
        with zipfile.ZipFile(tmp_path / "model.pt", "w") as archive:
            archive.writestr("archive/data.pkl", content)
        assert not read_checkpoint(tmp_path / "model.pt").damage

    def test_references_in_circles_and_deep_nesting_end(self, tmp_path: Path) -> None:
        nested = b"]" * 100_000 + b"a" * 99_999
        circle = b"]q\x00h\x00a"
        for inside in (circle, nested):
            with zipfile.ZipFile(tmp_path / "model.pt", "w") as archive:
                archive.writestr("archive/data.pkl", b"\x80\x02" + inside + b".")
            if inside is circle:
                assert read_torch_file(tmp_path / "model.pt").tensors == ()
        with pytest.raises(FileDamage, match="nested deeper than 64 levels"):
            read_torch_file(tmp_path / "model.pt")

    @pytest.mark.parametrize(
        ("name", "content", "problem"),
        [
            ("model.pt", b"", "is empty"),
            ("model.pt", b"PK\x03\x04" + bytes(100), "cut off"),
            ("model.pt", b"<html>404</html>", "is not a torch.save file"),
            ("model.pt", bytes(5000), "zeros only"),
            ("model.pt", b"\x80\x02}q\x00(X\x05\x00\x00\x00mode", "not a complete pickle"),
            ("model.safetensors", b"", "is empty"),
            ("model.safetensors", b"\xff" * 8 + b"{}", "is not a complete safetensors file"),
            ("model.safetensors", struct.pack("<Q", 2) + b"[]", "not a JSON object"),
            ("model.safetensors", struct.pack("<Q", 9) + b'{"a":{}} ', "no complete entry for 'a'"),
        ],
    )
    def test_damage_is_one_clear_line(
        self, tmp_path: Path, capsys: pytest.CaptureFixture[str], name: str, content: bytes, problem: str
    ) -> None:
        (tmp_path / name).write_bytes(content)
        answer = run(capsys, "checkpoint", tmp_path)
        assert answer.code == 4
        assert problem in answer.err
        assert "Traceback" not in answer.err

    def test_safetensors_that_are_cut_off(self, tmp_path: Path) -> None:
        write_safetensors(tmp_path / "model.safetensors", {"w": ("F32", [100])}, cut=4)
        assert "describes 400 bytes of tensors, 396 are present" in read_checkpoint(tmp_path).damage[0]

    @pytest.mark.parametrize("make", [lambda folder: folder / "nowhere", lambda folder: folder])
    def test_no_checkpoint_at_all_ends_with_1(
        self, tmp_path: Path, capsys: pytest.CaptureFixture[str], make: Any
    ) -> None:
        (tmp_path / "notes.txt").write_text("x")
        answer = run(capsys, "checkpoint", make(tmp_path))
        assert answer.code == 1
        assert len(answer.err.splitlines()) <= 2

    @settings(max_examples=150, deadline=None)
    @given(st.data())
    def test_no_damage_ever_escapes(self, tmp_path_factory: pytest.TempPathFactory, data: st.DataObject) -> None:
        """Every cut and every changed byte of a real file gives tensors or a FileDamage, never another error."""
        whole = (FIXTURES / "deepspeed_zero3/global_step2/zero_pp_rank_0_mp_rank_00_model_states.pt").read_bytes()
        changed = bytearray(whole[: data.draw(st.integers(0, len(whole)))])
        for _ in range(data.draw(st.integers(0, 8))):
            if changed:
                changed[data.draw(st.integers(0, len(changed) - 1))] = data.draw(st.integers(0, 255))
        path = tmp_path_factory.getbasetemp() / "changed.pt"
        path.write_bytes(changed)
        with contextlib.suppress(FileDamage):
            read_torch_file(path)


def test_nothing_of_ours_loads_a_pickle() -> None:
    """No source file loads one; one builds on the standard library's opcodes. Hooks run inside the job and may."""
    forbidden = ("pickle." + "load", "torch." + "load(", "import " + "pickle\n", "import " + "dill")
    for folder in ("perfscope/sources", "perfscope/commands", "perfscope/regenerate", "analyzers"):
        for path in (ROOT / folder).rglob("*.py"):
            found = [name for name in forbidden if name in path.read_text()]
            assert found == (["import " + "pickle\n"] if path.name == "pickles.py" else []), path


def test_the_bytes_of_a_shard_that_cannot_be_read_are_not_held_against_the_others(tmp_path: Path) -> None:
    write_safetensors(tmp_path / "model-00001-of-00002.safetensors", {"a": ("F32", [10])})
    (tmp_path / "model-00002-of-00002.safetensors").write_bytes(struct.pack("<Q", 5000) + b"{" * 5000)
    sizes = sizes_of(tmp_path)
    assert "damage" in kinds(sizes)
    assert not kinds(sizes) & {"larger"}


@pytest.mark.parametrize("size", [(2**62, 2**62), (-5, 64)])
def test_a_metadata_with_an_impossible_shape_is_not_believed(tmp_path: Path, size: tuple[int, int]) -> None:
    torch = pytest.importorskip("torch")
    from torch.distributed import checkpoint

    with pytest.warns(UserWarning, match="single process"):
        checkpoint.save({"weight": torch.ones(64, 64)}, checkpoint_id=tmp_path, no_dist=True)
    metadata = pickle.loads((tmp_path / ".metadata").read_bytes())
    metadata.state_dict_metadata["weight"].size = torch.Size(size)
    (tmp_path / ".metadata").write_bytes(pickle.dumps(metadata))
    read = read_checkpoint(tmp_path)
    assert read.stated_parameters is None
    assert read.damage == (".metadata states a shape of weight that no tensor can have",)
