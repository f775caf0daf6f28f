"""Megatron's dist_checkpointing: the files that Megatron-core 0.16.1 wrote with two tensor and two pipeline ranks.

The GPT has 2 layers of width 16, 64 words and 8 positions, with an output layer of its own.
"""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from perfscope.sources.checkpoints.checkpoint import read_checkpoint
from perfscope.sources.checkpoints.roles import find_role
from perfscope.tables.checkpoint import Kind, Layout, Role
from tests.sources.checkpoints.checkpoint_files import FIXTURES

SAVED = FIXTURES / "megatron_dist" / "iter_0000010"
LAYER = 2 * 16 + (16 * 48 + 48) + (16 * 16 + 16) + 2 * 16 + (16 * 64 + 64) + (64 * 16 + 16)
PARAMETERS = 64 * 16 + 8 * 16 + 2 * LAYER + 2 * 16 + 64 * 16


@pytest.fixture
def saved(tmp_path: Path) -> Path:
    return Path(shutil.copytree(SAVED, tmp_path / SAVED.name))


def test_parts_are_those_of_the_whole_state_not_of_a_rank() -> None:
    checkpoint = read_checkpoint(SAVED)
    assert checkpoint.layout is Layout.MEGATRON_DIST
    assert checkpoint.damage == ()
    assert checkpoint.stated_parameters == PARAMETERS
    sums: dict[Role, int] = {}
    for file in checkpoint.files:
        for group in file.holds or ():
            sums[group.role] = sums.get(group.role, 0) + group.bytes
    assert sums[Role.WEIGHTS] == 2 * PARAMETERS
    assert sums[Role.MASTER] == 4 * PARAMETERS
    assert sums[Role.MOMENTS] == 8 * PARAMETERS


@pytest.mark.parametrize("name", ["__1_0.distcp", "__3_1.distcp"])
def test_a_missing_file_of_a_rank_is_a_problem(saved: Path, name: str) -> None:
    (saved / name).unlink()
    assert name in " ".join(read_checkpoint(saved).damage)


BUCKET = "optimizer.distributed.dp_group_idx_0.gbuf_idx_0.dtype_(torch.bfloat16, torch.bfloat16).bucket_idx_0.{}"


@pytest.mark.parametrize("name", [BUCKET, "chained_0.optimizer.state.{}.decoder.layers.mlp.linear_fc1.weight"])
def test_buckets_of_the_distributed_optimizer_are_masters_and_moments(name: str) -> None:
    for state, expected in (("param", Role.MASTER), ("exp_avg", Role.MOMENTS), ("exp_avg_sq", Role.MOMENTS)):
        assert find_role((name.format(state),), "float32", Kind.SHARD) is expected
