"""Checkpoints that several ranks wrote: the whole state counts, however it is split over their files."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from perfscope.tables.checkpoint import Layout
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

    def test_state_that_ranks_replicate_is_there_twice(self) -> None:
        """HSDP on 2 x 2 ranks, each with torch.save: ranks 2 and 3 wrote what 0 and 1 wrote."""
        sizes = sizes_of(FIXTURES / "hsdp_per_rank")
        assert sizes.parameters == PARAMETERS
        assert parts(sizes)["weights"] == 2 * WEIGHTS
        assert kinds(sizes) == {"larger", "doubled_optimizer"}


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

    def test_the_file_of_a_rank(self, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
        shutil.copytree(FIXTURES / "verl_fsdp2", tmp_path / "c")
        (tmp_path / "c/optim_world_size_4_rank_3.pt").unlink()
        answer = run(capsys, "checkpoint", tmp_path / "c")
        assert answer.code == 4
        assert "optim_world_size_4_rank_#.pt is missing for 1 of 4 ranks: 3" in answer.err
