"""Megatron's dist_checkpointing: the files that Megatron-core 0.16.1 wrote with two tensor and two pipeline ranks.

The GPT has 2 layers of width 16, 64 words and 8 positions, with an output layer of its own.
"""

from __future__ import annotations

import io
import pickle
import shutil
import zipfile
from pathlib import Path

import pytest

from perfscope.sources.checkpoints.checkpoint import read_checkpoint
from perfscope.sources.checkpoints.roles import find_role
from perfscope.tables.checkpoint import Kind, Layout, Role
from tests.commands.report_cli import run
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


def test_the_command_compares_with_theory_and_finds_nothing_wrong(capsys: pytest.CaptureFixture[str]) -> None:
    answer = run(capsys, "checkpoint", SAVED)
    assert answer.code == 0
    lines = [[cell.strip() for cell in line.split("|")[1:-1]] for line in answer.out.splitlines()]
    assert ["weights", str(2 * PARAMETERS), "17.536", "17.125", "2.000", "2"] in lines
    assert ["optimizer", str(12 * PARAMETERS), "105.216", "102.750", "12.000", "12"] in lines
    assert "twice" not in answer.out
    assert "redundant" not in answer.out


@pytest.mark.parametrize("name", ["__1_0.distcp", "__3_1.distcp"])
def test_a_missing_file_of_a_rank_is_a_problem(saved: Path, name: str) -> None:
    (saved / name).unlink()
    assert name in " ".join(read_checkpoint(saved).damage)


def test_common_pt_is_never_unpickled_and_named_where_it_would_run_code(
    saved: Path, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    class Harm:
        def __reduce__(self) -> tuple[object, tuple[str]]:
            return Path.touch, (str(tmp_path / "harmed"),)

    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w") as archive:
        archive.writestr("common/data.pkl", b"cos\nsystem\n(S'touch " + str(tmp_path / "harmed").encode() + b"'\ntR.")
    (saved / "common.pt").write_bytes(buffer.getvalue())
    answer = run(capsys, "checkpoint", saved)
    assert "os.system" in answer.out + answer.err
    assert answer.code == 4
    (saved / "common.pt").write_bytes(pickle.dumps(Harm()))
    read_checkpoint(saved)
    assert not (tmp_path / "harmed").exists()


BUCKET = "optimizer.distributed.dp_group_idx_0.gbuf_idx_0.dtype_(torch.bfloat16, torch.bfloat16).bucket_idx_0.{}"


@pytest.mark.parametrize("name", [BUCKET, "chained_0.optimizer.state.{}.decoder.layers.mlp.linear_fc1.weight"])
def test_buckets_of_the_distributed_optimizer_are_masters_and_moments(name: str) -> None:
    for state, expected in (("param", Role.MASTER), ("exp_avg", Role.MOMENTS), ("exp_avg_sq", Role.MOMENTS)):
        assert find_role((name.format(state),), "float32", Kind.SHARD) is expected
