"""Checkpoints that several ranks wrote: the whole state counts, however it is split over their files."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from perfscope.sources.checkpoints.checkpoint import read_checkpoint
from perfscope.sources.checkpoints.roles import find_role
from perfscope.tables.checkpoint import Kind, Layout, Role
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


SAVED = FIXTURES / "megatron_dist" / "iter_0000010"
LAYER = 2 * 16 + (16 * 48 + 48) + (16 * 16 + 16) + 2 * 16 + (16 * 64 + 64) + (64 * 16 + 16)
MEGATRON_PARAMETERS = 64 * 16 + 8 * 16 + 2 * LAYER + 2 * 16 + 64 * 16


@pytest.fixture
def saved(tmp_path: Path) -> Path:
    return Path(shutil.copytree(SAVED, tmp_path / SAVED.name))


def test_parts_are_those_of_the_whole_state_not_of_a_rank() -> None:
    checkpoint = read_checkpoint(SAVED)
    assert checkpoint.layout is Layout.MEGATRON_DIST
    assert checkpoint.damage == ()
    assert checkpoint.stated_parameters == MEGATRON_PARAMETERS
    sums: dict[Role, int] = {}
    for file in checkpoint.files:
        for group in file.holds or ():
            sums[group.role] = sums.get(group.role, 0) + group.bytes
    assert sums[Role.WEIGHTS] == 2 * MEGATRON_PARAMETERS
    assert sums[Role.MASTER] == 4 * MEGATRON_PARAMETERS
    assert sums[Role.MOMENTS] == 8 * MEGATRON_PARAMETERS


@pytest.mark.parametrize("name", ["__1_0.distcp", "__3_1.distcp"])
def test_a_missing_file_of_a_rank_is_a_problem(saved: Path, name: str) -> None:
    (saved / name).unlink()
    assert name in " ".join(read_checkpoint(saved).damage)


BUCKET = "optimizer.distributed.dp_group_idx_0.gbuf_idx_0.dtype_(torch.bfloat16, torch.bfloat16).bucket_idx_0.{}"


@pytest.mark.parametrize("name", [BUCKET, "chained_0.optimizer.state.{}.decoder.layers.mlp.linear_fc1.weight"])
def test_buckets_of_the_distributed_optimizer_are_masters_and_moments(name: str) -> None:
    for state, expected in (("param", Role.MASTER), ("exp_avg", Role.MOMENTS), ("exp_avg_sq", Role.MOMENTS)):
        assert find_role((name.format(state),), "float32", Kind.SHARD) is expected
