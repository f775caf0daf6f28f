"""What is made of a log: warm-up, throughput, TFLOPs, status, doubts."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from perfscope.analyzers.logs.setup import Overrides
from perfscope.analyzers.logs.summary import LogSummary, summarize_log
from perfscope.models.conventions import Checkpointing
from perfscope.result import to_object
from perfscope.sources.joblog import read_log
from tests.conftest import ROOT
from tests.sources.joblog.lines import megatron, read

FIXTURES = ROOT / "fixtures" / "logs"
EVALUATION = " validation loss at iteration 2 | lm loss value: 7.0E+00 | \n"


def summary(folder: Path, *lines: str, name: str = "run.log", overrides: Overrides | None = None) -> LogSummary:
    return summarize_log(read(folder, *lines, name=name), overrides)


def codes(result: LogSummary) -> set[str]:
    return {flag.split(":")[0] for flag in result.flags}


def test_the_first_record_is_warm_up_and_the_mean_of_all_has_it(tmp_path: Path) -> None:
    result = summary(tmp_path, *(megatron(n, ms) for n, ms in enumerate([900.0, 100.0, 300.0, 200.0], 1)))
    assert result.iterations == 4
    assert (result.times.median_s, result.times.first_s) == (0.2, 0.9)
    assert result.times.mean_s == pytest.approx(0.2)
    assert result.times.mean_all_s == 0.375
    assert result.times.left_out.warmup == 1


def test_a_mean_that_holds_the_first_iteration_is_warm_up_too(tmp_path: Path) -> None:
    stamp = " [2026-11-21 00:35:21.604905]"
    times = [(1, 9000.0), (10, 1630.8), (20, 812.0), (30, 812.0)]
    lines = ["  log_interval ............ 10\n", *(megatron(n, ms, prefix=stamp) for n, ms in times)]
    result = summary(tmp_path, *lines)
    assert (result.iterations, result.times.max_s, result.times.left_out.warmup) == (30, 0.812, 2)
    assert summary(tmp_path, *lines, overrides=Overrides(warmup=11)).times.used_records == 1
    assert result.times.mean_all_s == pytest.approx((9 + 1.6308 + 0.812 * 2) / 4)  # of lines, as the one-liner's


def test_what_is_not_stated_follows_from_what_is(tmp_path: Path) -> None:
    banner = (
        "using world size: 16, data-parallel size: 4, tensor-model-parallel size: 2, pipeline-model-parallel size: 2\n"
    )
    result = summary(tmp_path, banner, "  micro_batch_size ......... 1\n", megatron(1, 100.0, batch=32))
    assert (result.setup.layout.gas, to_object(result)["gas"]) == (8, 8)
    stated = "  world_size ... 64\n  model_parallel_size ... 4\n  micro_batch_size ... 48\n  gradient_accumulation_steps ... 1\n"
    result = summary(tmp_path, stated, megatron(1, 100.0, batch=768))
    assert (result.setup.layout.dp, result.setup.layout.pp) == (16, 1)


def test_every_start_warms_up(tmp_path: Path) -> None:
    times = [(1, 900.0), (2, 100.0), (3, 100.0), (2, 800.0), (3, 100.0), (4, 100.0)]
    result = summary(tmp_path, *(megatron(n, ms) for n, ms in times))
    assert result.times.max_s == 0.1
    assert result.times.left_out.warmup == 2
    assert "restarted" in codes(result)


def test_what_holds_an_evaluation_is_left_out_unless_all_do(tmp_path: Path) -> None:
    one = [megatron(1, 100.0), megatron(2, 100.0), EVALUATION, megatron(3, 900.0), megatron(4, 100.0)]
    assert summary(tmp_path, *one).times.max_s == 0.1
    assert summary(tmp_path, *one).times.left_out.evaluation == 1
    every = [line for n in range(1, 5) for line in (megatron(n, 100.0 * n), EVALUATION)]
    assert summary(tmp_path, *every).times.max_s == 0.4


def test_tflops_of_the_seeds_row(tmp_path: Path) -> None:
    # 61 * 4 * 2 * 1024 * 1024 / (144 * 64 * 1000): the row 61B-megatron-mbs-2-pp16-dp-1-gas-512 is 55.5.
    lines = [megatron(n, "144000.0").replace("global batch size:  1024 |", "") for n in (1, 2, 3)]
    result = summary(tmp_path, *lines, name="61B-megatron-mbs-2-pp16-dp-1-gas-512-200977.out")
    assert result.tflops_per_gpu == pytest.approx(55.5, abs=0.05)
    assert result.setup.assumed == (
        "64 GPUs (--gpus)",
        "sequence length 1024 (--seq-len)",
        "activation checkpointing full (--checkpointing)",
    )
    assert to_object(result)["gbs"] == 1024


def test_what_is_given_goes_before_what_is_found(tmp_path: Path) -> None:
    overrides = Overrides(parameters=52 * 10**9, gpus=64, seq_len=1024, samples=1024, checkpointing=Checkpointing.FULL)
    result = summary(tmp_path, megatron(1, 127000.0), name="7B-mbs-1-pp2-dp-1-gas-4.out", overrides=overrides)
    assert result.tflops_per_gpu == pytest.approx(53.667, abs=1e-3)
    assert result.setup.assumed == ()


def test_the_size_is_counted_from_the_arguments(tmp_path: Path) -> None:
    arguments = "".join(
        f"  {name} {'.' * 20} {value}\n"
        for name, value in (
            ("num_layers", 64),
            ("hidden_size", 8192),
            ("padded_vocab_size", 50688),
            ("seq_length", 1024),
        )
    )
    result = summary(tmp_path, arguments, megatron(1, 1000.0), name="52B.out")
    assert result.setup.parameters == 64 * (12 * 8192**2 + 13 * 8192) + 50688 * 8192 + 1024 * 8192 + 2 * 8192
    assert result.setup.parameters_source == "arguments"
    gated = arguments + "  swiglu ............ True\n"
    assert summary(tmp_path, gated, megatron(1, 1000.0), name="52B.out").setup.parameters_source == "name"


@pytest.mark.parametrize(
    ("lines", "name", "status"),
    [
        ([megatron(1, 1000.0)], "a.log", "ok"),
        ([megatron(1, 1000.0), "torch.cuda.OutOfMemoryError: CUDA out of memory.\n"], "a.log", "incomplete"),
        (["using world size: 8, data-parallel-size: 1\n"], "a.log", "fail"),
        (["srun: error: r6i6n5: task 3: Exited with exit code 1\n"], "a.log", "fail"),
        (["no launcher told anything\n"], "61B-megatron-mbs-4-pp8-dp-2-gas-128-200980.out", "fail"),
        ([], "61B-megatron-mbs-4-pp8-dp-2-gas-128-200980.out", "fail"),
        ([megatron(1, "nan")], "a.log", "fail"),
        (["dear diary\n"], "a.log", "unrecognised"),
    ],
)
def test_status(tmp_path: Path, lines: list[str], name: str, status: str) -> None:
    assert summary(tmp_path, *lines, name=name).status == status


def test_a_throughput_a_thousand_times_too_small_is_flagged(tmp_path: Path) -> None:
    lines = [megatron(n, 215820.0, batch=2048, cells=" samples per second: 0.009 |") for n in (1, 2)]
    result = summary(tmp_path, *lines)
    assert result.samples_per_s == pytest.approx(9.4894, abs=1e-3)
    [flag] = [flag for flag in result.flags if flag.startswith("throughput-disagrees")]
    assert "0.009" in flag
    assert "in 2 of 2 records" in flag


def test_deepspeeds_count_of_micro_steps_is_flagged(tmp_path: Path) -> None:
    line = "[2024-03-07 15:27:02,646] [INFO] [timer.py:260:stop] epoch=0/micro_step={0}/global_step={0}, RunningAvgSamplesPerSec=151.5, CurrSamplesPerSec=151.5\n"
    lines = [text for n in (1, 2, 3) for text in (line.format(n), megatron(n, 14065.9, batch=256))]
    [flag] = [flag for flag in summary(tmp_path, *lines).flags if flag.startswith("throughput-disagrees")]
    assert "151.5" in flag
    assert "18.2" in flag


def test_a_batch_that_is_not_its_parts_is_flagged(tmp_path: Path) -> None:
    result = summary(tmp_path, megatron(1, 1000.0, batch=1536), name="52B-megatron-mbs-4-pp16-dp-1-gas-256.out")
    assert "batch-contradicts" in codes(result)


def test_a_name_that_the_log_contradicts_is_flagged(tmp_path: Path) -> None:
    banner = (
        "using world size: 64, data-parallel-size: 2, tensor-model-parallel size: 4, pipeline-model-parallel size: 8 \n"
    )
    result = summary(tmp_path, banner, megatron(1, 1000.0), name="61B-megatron-mbs-4-pp16-dp-2-gas-128-1.out")
    assert any("pp 16" in flag and "8" in flag for flag in result.flags if flag.startswith("name-disagrees"))


def test_a_growing_batch_is_all_samples_over_all_time(tmp_path: Path) -> None:
    lines = [megatron(1, 1000.0, batch=16), megatron(2, 1000.0, batch=16), megatron(3, 3000.0, batch=32)]
    result = summary(tmp_path, *lines)
    assert result.samples_per_s == pytest.approx(48 / 4)
    assert "batch-ramp-up" in codes(result)


def test_a_run_of_megatron_core_on_four_gpus() -> None:
    result = summarize_log(read_log(FIXTURES / "megatron_core_tp2_pp2_h200.log"))
    times = [2172.6, 801.8, 788.2, 911.6, 797.6, 1079.0, 1154.8, 1163.6, 7700.9, 785.5, 858.0, 914.0, 920.3, 881.7]
    assert result.times.median_s == pytest.approx((sorted(times)[6] + sorted(times)[7]) / 2e3)
    assert result.times.mean_s == pytest.approx(sum(times) / 14e3)
    assert result.times.mean_all_s == pytest.approx((sum(times) + 3436.8) / 15e3)
    assert result.samples_per_s == pytest.approx(32 / 0.9128)
    assert "slow-iterations" in codes(result)
    data: Any = to_object(result)
    assert data["checkpoints"][0]["seconds"] == pytest.approx(4.99596)
    assert data["memory"]["peak_reserved_bytes"] == 7074 * 2**20
    assert data["complete"] is True
    assert data["loss"] == {"first": 10.77864, "last": 7.367525}


def test_a_run_of_deepspeed_that_logs_its_timers_alone() -> None:
    result = summarize_log(read_log(FIXTURES / "deepspeed_zero1_h200.log"))
    # The script's own clock has a median of 101.8 ms; forward, backward and step are less than that.
    assert result.times.median_s == pytest.approx(0.0953, abs=1e-3)
    assert "lower-bound" in codes(result)


@pytest.mark.parametrize("text", ["cmd = python main.py --max_seq_len 512 --x", "Namespace(a=1, max_seq_len=512, b=2)"])
def test_the_sequence_length_is_that_of_the_logs_own_arguments(tmp_path: Path, text: str) -> None:
    log = read(tmp_path, text + "\n", megatron(1, 1000.0), megatron(2, 1000.0), name="52B-x-mbs-2-pp4-gas-4.out")
    summary = summarize_log(log)
    assert summary.setup.seq_len == 512
    assert not any("sequence length" in assumption for assumption in summary.setup.assumed)
