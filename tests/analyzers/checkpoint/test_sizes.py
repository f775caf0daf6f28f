"""Bytes per parameter of real checkpoints against theory, from their contents or from sizes alone."""

from __future__ import annotations

from pathlib import Path

import pytest

from perfscope.analyzers.checkpoint import SavedOptimizer, SavedPrecision, bytes_per_parameter, check_checkpoint
from perfscope.sources.checkpoints.checkpoint import read_checkpoint
from perfscope.tables.checkpoint import Layout
from tests.commands.report_cli import run
from tests.sources.checkpoints.checkpoint_files import FIXTURES, kinds, parts, sizes_of, write_holes, write_safetensors

PARAMETERS = 64 * 16 + (16 * 32 + 32) + (32 * 16 + 16)  # the model of the DeepSpeed fixtures
H200_PARAMETERS = 812_445_696


@pytest.mark.parametrize(
    ("optimizer", "precision", "stage", "expected"),
    [
        (SavedOptimizer.ADAM, SavedPrecision.MIXED, 1, (2, 12)),
        (SavedOptimizer.ADAM, SavedPrecision.MIXED, 3, (0, 12)),
        (SavedOptimizer.ADAM, SavedPrecision.FP32, 0, (4, 8)),
        (SavedOptimizer.SGD_MOMENTUM, SavedPrecision.MIXED, 0, (2, 8)),
        (SavedOptimizer.ADAM_8BIT, SavedPrecision.MIXED, 0, (2, 6)),
        (SavedOptimizer.NONE, SavedPrecision.MIXED, 0, (2, 0)),
    ],
)
def test_bytes_of_a_parameter(
    optimizer: SavedOptimizer, precision: SavedPrecision, stage: int, expected: tuple[int, int]
) -> None:
    each = bytes_per_parameter(optimizer, precision, stage)
    assert (each.weights, each.optimizer) == expected


class TestRealDeepSpeed:
    """What DeepSpeed itself wrote, for a model whose parameters can be counted by hand."""

    @pytest.mark.parametrize(
        ("folder", "layout", "expected"),
        [
            ("deepspeed_zero1", Layout.DEEPSPEED_ZERO_1_2, {"weights": 2, "optimizer": 12}),
            ("deepspeed_zero3", Layout.DEEPSPEED_ZERO_3, {"optimizer": 12}),
            ("deepspeed_pipeline", Layout.DEEPSPEED_PIPELINE, {"weights": 2, "optimizer": 24}),
        ],
    )
    def test_bytes_per_parameter(self, folder: str, layout: Layout, expected: dict[str, int]) -> None:
        sizes = sizes_of(FIXTURES / folder)
        assert sizes.checkpoint.layout is layout
        assert sizes.checkpoint.tag == "global_step2"
        assert sizes.parameters == PARAMETERS
        state = {part: size for part, size in parts(sizes).items() if part != "other"}
        assert state == {part: each * PARAMETERS for part, each in expected.items()}
        assert sum(parts(sizes).values()) == sizes.checkpoint.bytes

    def test_state_that_is_there_twice_is_named(self, capsys: pytest.CaptureFixture[str]) -> None:
        assert "doubled_optimizer" in kinds(sizes_of(FIXTURES / "deepspeed_pipeline"))
        assert not kinds(sizes_of(FIXTURES / "deepspeed_zero1"))
        answer = run(capsys, "checkpoint", FIXTURES / "deepspeed_pipeline")
        assert answer.code == 0
        assert "The optimizer state was saved twice: 24.00 bytes/parameter, 12 expected" in answer.err


class TestSizesOnly:
    """The files that a real run wrote on GPUs, of which names and sizes were kept."""

    @pytest.mark.parametrize(
        ("name", "total", "found"),
        [
            ("deepspeed_zero1_h200", 14.0, set()),
            ("deepspeed_zero3_h200", 12.0, set()),
            ("deepspeed_pipeline_h200", 26.0, {"doubled_optimizer"}),
        ],
    )
    def test_measured_bytes_per_parameter(self, name: str, total: float, found: set[str], tmp_path: Path) -> None:
        sizes = sizes_of(write_holes(name, tmp_path))
        assert sizes.parameters == pytest.approx(H200_PARAMETERS, rel=1e-4)  # guessed from the sizes
        given_size = check_checkpoint(read_checkpoint(tmp_path), H200_PARAMETERS)
        assert given_size.checkpoint.bytes / H200_PARAMETERS == pytest.approx(total, abs=0.01)
        assert kinds(given_size) == kinds(sizes) == found | {"damage"}

    def test_megatron_with_one_file_a_rank(self, tmp_path: Path) -> None:
        sizes = sizes_of(write_holes("megatron_legacy_h200", tmp_path))
        assert sizes.checkpoint.layout is Layout.MEGATRON_LEGACY
        assert sizes.checkpoint.tag == "iter_0000015"
        assert [file.ranks for file in sizes.checkpoint.files][-1] == {"tp": 1, "pp": 1}

    def test_a_file_of_zeros_is_judged_by_its_name_and_ends_with_4(
        self, tmp_path: Path, capsys: pytest.CaptureFixture[str]
    ) -> None:
        for name, size in (("mp_rank_00_model_states.pt", 2), ("zero_pp_rank_0_mp_rank_00_optim_states.pt", 12)):
            with (tmp_path / name).open("wb") as file:
                file.truncate(size * 10**9)  # a hole: no disk is used
        answer = run(capsys, "checkpoint", tmp_path, "--format", "json")
        assert answer.code == 4
        assert answer.data["results"]["checkpoint"]["bytes_per_parameter"] == 14
        assert "zeros only" in answer.err


@pytest.mark.parametrize(("up", "expected"), [("I8", {"weights_only"}), ("BF16", {"weights_only", "larger"})])
def test_wide_weights_are_told_except_beside_quantised_ones(up: str, expected: set[str], tmp_path: Path) -> None:
    write_safetensors(
        tmp_path / "model.safetensors", {"embedding.weight": ("F32", [100, 16]), "up.weight": (up, [256, 16])}
    )
    assert kinds(sizes_of(tmp_path)) == expected
