"""What a log's name tells."""

from __future__ import annotations

from pathlib import Path

import pytest

from perfscope.sources.joblog.files import parse_file_name


@pytest.mark.parametrize(
    ("name", "facts"),
    [
        (
            "55B-ds-zero1-mbs-4-pp8-dp-2-gas-128-200967.out",
            {"parameters": 55 * 10**9, "zero_stage": 1, "mbs": 4, "pp": 8, "dp": 2, "gas": 128},
        ),
        ("7.5B-tp4-pp2-mbs1.log", {"parameters": 7_500_000_000, "tp": 4, "pp": 2, "mbs": 1}),
        ("2n_8g_16dp_1mp_4bs.log", {"nodes": 2, "gpus_per_node": 8, "gpus": 16, "dp": 16, "tp": 1, "mbs": 4}),
        ("1n_8g_dp_4bs", {"nodes": 1, "gpus_per_node": 8, "gpus": 8, "mbs": 4}),
        (
            "20201209-test_zero_gpt2-small_4n8g_bz4_zero_stage1_off_checkpoint_activation.log",
            {"nodes": 4, "gpus_per_node": 8, "gpus": 32, "mbs": 4, "zero_stage": 1},
        ),
        (
            "bz32/16n8g/bert_b32_fp32_4.log",
            {"nodes": 16, "gpus_per_node": 8, "gpus": 128, "mbs": 32, "precision": "fp32"},
        ),
        ("bigscience_megatron_52B_64gpu.out", {"parameters": 52 * 10**9, "gpus": 64}),
        ("hf_ds_gpt2_perf_n16_bs4-mbs8.out", {"nodes": 16, "mbs": 8}),
        ("train_400968.out", {}),
        ("stdout.txt", {}),
    ],
)
def test_a_name_tells(name: str, facts: dict[str, int | str]) -> None:
    assert dict(parse_file_name(Path(name)).facts) == facts


def test_a_benchmarks_name_is_a_runs_name() -> None:
    assert parse_file_name(Path("61B-megatron-mbs-4-pp8-dp-2-gas-128-200980.out")).is_run
    assert not parse_file_name(Path("notes-52B.txt")).is_run
