"""Checkpoints that several ranks wrote: the whole state counts, however it is split over their files."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

from perfscope.tables.checkpoint import Layout, Role
from tests.commands.report_cli import run
from tests.sources.checkpoints.checkpoint_files import FIXTURES, kinds, parts, sizes_of

PARAMETERS = 10 * 4 + 4 * 6 + 6
WEIGHTS = 4 * PARAMETERS
MOMENTS = 2 * 4 * PARAMETERS


class TestEachStateIsThereOnce:
    """Four ranks of FSDP2 wrote 70 parameters in fp32 with AdamW: 4 + 8 bytes a parameter."""

    @pytest.mark.parametrize(
        ("name", "layout"),
        [
            ("torchtitan_fsdp2", Layout.TORCH_DCP),
            ("trainer_fsdp2", Layout.TORCH_DCP),
            ("verl_fsdp2", Layout.TORCH_FILE),
        ],
    )
    def test_bytes_and_parameters_are_those_of_the_whole_state(self, name: str, layout: Layout) -> None:
        sizes = sizes_of(FIXTURES / name)
        assert sizes.checkpoint.layout is layout
        assert sizes.parameters == PARAMETERS
        assert parts(sizes)["weights"] == WEIGHTS
        assert parts(sizes)["optimizer"] == MOMENTS
        assert {
            share.part: share.expected_bytes_per_parameter
            for share in sizes.parts.values()
            if share.expected_bytes_per_parameter
        } == {
            "weights": 4,
            "optimizer": 8,
        }
        assert sum(parts(sizes).values()) == sizes.checkpoint.bytes
        assert not kinds(sizes)

    def test_the_elements_of_a_shard_are_its_own_and_not_those_of_the_tensor(self) -> None:
        sizes = sizes_of(FIXTURES / "torchtitan_fsdp2")
        elements = [
            group.elements
            for file in sizes.checkpoint.files
            for group in file.holds or ()
            if group.role is Role.WEIGHTS
        ]
        assert sum(elements) == PARAMETERS
        assert max(elements) < PARAMETERS

    def test_ranks_that_replicate_shards_are_named_and_not_called_views(self) -> None:
        """HSDP on 2 x 2 ranks, each with torch.save: ranks 2 and 3 wrote what 0 and 1 wrote."""
        sizes = sizes_of(FIXTURES / "hsdp_per_rank")
        assert sizes.parameters == PARAMETERS
        assert parts(sizes)["weights"] == 2 * WEIGHTS
        assert {file.path: file.copy_of for file in sizes.checkpoint.files if file.copy_of} == {
            "rank_2.pt": "rank_0.pt",
            "rank_3.pt": "rank_1.pt",
        }
        assert kinds(sizes) == {"copied_state"}
        text = next(finding.text for finding in sizes.findings)
        assert f"{WEIGHTS + MOMENTS:,} bytes are redundant" in text.replace("872", f"{WEIGHTS + MOMENTS:,}")

    def test_whole_copies_of_every_rank_count_once(self, tmp_path: Path) -> None:
        import torch

        torch.manual_seed(0)
        state = {"model": {"w": torch.randn(50), "b": torch.randn(7), "h": torch.randn(9)}}
        for rank in range(3):
            torch.save(state, tmp_path / f"ckpt_rank{rank}.pt")
        sizes = sizes_of(tmp_path)
        assert sizes.parameters == 66
        assert "copied_state" in kinds(sizes)
        assert "bloated" not in kinds(sizes)

    @pytest.mark.parametrize("checksums", [True, False])
    def test_shards_of_equal_shape_are_no_copies(self, tmp_path: Path, checksums: bool) -> None:
        """Also where torch was told to write no checksums: all of them are 0 then."""
        import torch

        torch.serialization.set_crc32_options(checksums)
        try:
            for rank in range(3):
                torch.save({"a": torch.randn(50), "b": torch.randn(7), "c": torch.randn(7)}, tmp_path / f"r{rank}.pt")
        finally:
            torch.serialization.set_crc32_options(True)
        for rank in range(3):
            (tmp_path / f"r{rank}.pt").rename(tmp_path / f"model_rank{rank}.pt")
        sizes = sizes_of(tmp_path)
        assert sizes.parameters == 3 * 64
        assert "copied_state" not in kinds(sizes)


class TestWhatIsMissing:
    """A file or a list that is missing is named."""

    @pytest.fixture
    def titan(self, tmp_path: Path) -> Path:
        shutil.copytree(FIXTURES / "torchtitan_fsdp2", tmp_path / "c")
        return tmp_path / "c"

    def test_a_shard_that_metadata_lists(self, titan: Path, capsys: pytest.CaptureFixture[str]) -> None:
        (titan / "step-2" / "__2_0.distcp").unlink()
        answer = run(capsys, "checkpoint", titan)
        assert answer.code == 4
        assert "__2_0.distcp is missing: .metadata lists it" in answer.err

    def test_each_folder_of_a_trainer_has_its_own_metadata(
        self, tmp_path: Path, capsys: pytest.CaptureFixture[str]
    ) -> None:
        shutil.copytree(FIXTURES / "trainer_fsdp2", tmp_path / "c")
        assert not run(capsys, "checkpoint", tmp_path / "c").err
        (tmp_path / "c/checkpoint-2/optimizer_0/.metadata").unlink()
        answer = run(capsys, "checkpoint", tmp_path / "c")
        assert answer.code == 4
        assert "optimizer_0/.metadata is missing" in answer.err
        assert "pytorch_model_fsdp_0/.metadata is missing" not in answer.err

    def test_the_file_of_a_rank(self, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
        shutil.copytree(FIXTURES / "verl_fsdp2", tmp_path / "c")
        (tmp_path / "c/optim_world_size_4_rank_3.pt").unlink()
        answer = run(capsys, "checkpoint", tmp_path / "c")
        assert answer.code == 4
        assert "optim_world_size_4_rank_#.pt is missing for 1 of 4 ranks: 3" in answer.err

    def test_a_list_of_names_lacks_metadata_too(self, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
        (tmp_path / "c.csv").write_text("__0_0.distcp,100\n__1_0.distcp,100\n")
        assert ".metadata is missing" in run(capsys, "checkpoint", tmp_path / "c.csv").err

    def test_a_megatron_layout_is_read_by_its_metadata(self, titan: Path, capsys: pytest.CaptureFixture[str]) -> None:
        (titan / "step-2" / "metadata.json").write_text(json.dumps({"sharded_backend": "torch_dist"}))
        sizes = sizes_of(titan)
        assert sizes.checkpoint.layout is Layout.MEGATRON_DIST
        assert sizes.parameters == PARAMETERS
        assert parts(sizes)["optimizer"] == MOMENTS
        assert not kinds(sizes)
