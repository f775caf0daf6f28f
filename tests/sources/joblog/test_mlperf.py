"""MLPerf's events: what published results state, and what damage takes away."""

from __future__ import annotations

from pathlib import Path

import pytest

from benchmarks.log_excerpts import EXCERPTS
from perfscope.analyzers.logs.setup import Overrides
from perfscope.analyzers.logs.summary import LogSummary, summarize_log
from perfscope.models.conventions import Checkpointing
from perfscope.models.hardware import read_platform
from perfscope.sources.joblog import read_log
from tests.commands.report_cli import run

PUBLISHED = EXCERPTS / "mlperf-405b.log"


def summarize(path: Path, checkpointing: Checkpointing | None = None) -> LogSummary:
    return summarize_log(read_log(path), Overrides(checkpointing=checkpointing))


def changed(tmp_path: Path, old: str, new: str) -> LogSummary:
    path = tmp_path / "run.log"
    text = PUBLISHED.read_text()
    assert old in text
    path.write_text(text.replace(old, new))
    return summarize(path)


def test_the_score_of_a_published_run() -> None:
    """NVIDIA's fastest Llama 3.1 405B of round 5.1: 640 s on 5,120 GB200, 270 steps, a log perplexity below 5.6."""
    benchmark = summarize(PUBLISHED).benchmark
    assert benchmark is not None
    assert (benchmark.run_s, benchmark.iterations, benchmark.target) == (640.428, 270, 5.6)
    assert benchmark.evaluation is not None
    assert benchmark.evaluation.last == pytest.approx(5.5539, abs=1e-4)
    assert benchmark.warmup_s == pytest.approx(492.264, abs=1e-3)


def test_tflops_or_the_reason() -> None:
    assert summarize(PUBLISHED).tflops_reason == "--checkpointing unknown"
    summary = summarize(PUBLISHED, Checkpointing.NONE)
    by_hand = 6 * 405.853e9 * 1280 * 8192 / 5120 / 2.201625 / 1e12
    assert summary.tflops_per_gpu == pytest.approx(by_hand, rel=1e-5)
    lora = summarize(EXCERPTS / "mlperf-lora.log", Checkpointing.NONE)
    assert (lora.tflops_per_gpu, lora.tflops_reason and lora.tflops_reason[:4]) == (None, "LoRA")
    assert lora.setup.seq_len == 8192  # the length of the benchmark's packed data


def test_mfu_only_for_a_stated_type(capsys: pytest.CaptureFixture[str]) -> None:
    def answer(*options: str) -> float | None:
        answered = run(capsys, "tflops", "--log", PUBLISHED, "--format", "json", *options).data
        mfu: dict[str, float | None] = {each["name"]: each["mfu"] for each in answered["conventions"]}
        return mfu["megatron_core"]

    assert answer() is None
    per_gpu = 2523.956e9 * 1280 * 8192 / 5120 / 2.201625  # the GFLOP/token that Google's table of Ironwood gives
    assert answer("--dtype", "fp8") == pytest.approx(per_gpu / 5000e12, rel=1e-5)
    assert answer("--dtype", "nvfp4") == pytest.approx(per_gpu / 10000e12, rel=1e-5)


@pytest.mark.parametrize(
    ("name", "gpus", "gpu"),
    [  # as the systems/*.json of rounds 4.0 to 5.1 have them
        ("128xNVIDIA DGX H100", 1024, "h100-sxm"),
        ("9xXE9712x4GB200", 36, "gb200"),
        ("1xSR675V3-8xH100_NVL_94GB_400W", 8, "h100-nvl"),
        ("1xXE9785L_8xMI355X", 8, "mi355x"),
        ("MI355X", None, "mi355x"),
        ("8xSUBMISSION_PLATFORM_PLACEHOLDER", None, None),
        ("2xA5000", None, None),
    ],
)
def test_gpus_of_a_platform(name: str, gpus: int | None, gpu: str | None) -> None:
    platform = read_platform(name)
    assert (platform.gpus, platform.gpu) == (gpus, gpu)


@pytest.mark.parametrize("name", ["mlperf-405b", "mlperf-8b-amd"])
def test_ranks_that_all_print_count_once(tmp_path: Path, name: str) -> None:
    lines = (EXCERPTS / f"{name}.log").read_text().splitlines(keepends=True)
    path = tmp_path / "run.log"
    path.write_text("".join(f"{rank}: {line}" for line in lines for rank in range(4)))
    alone, together = summarize(EXCERPTS / f"{name}.log"), summarize(path)
    assert (together.iterations, together.times, together.benchmark) == (alone.iterations, alone.times, alone.benchmark)


@pytest.mark.parametrize("status", ['"aborted"', "7"])
def test_a_run_without_success_says_so(tmp_path: Path, status: str) -> None:
    assert not summarize(PUBLISHED).flags
    flags = changed(tmp_path, '"status": "success"', f'"status": {status}').flags
    assert flags == ("target-missed: the run ended without reaching its target quality",)


@pytest.mark.parametrize("value", ["true", "null", '"8"', "1e999", "-8", "{}", "0.5"])
def test_a_batch_that_is_no_count_is_unknown(tmp_path: Path, value: str) -> None:
    summary = changed(tmp_path, '"global_batch_size", "value": 1280', f'"global_batch_size", "value": {value}')
    assert summary.setup.gbs is None
    assert summary.tflops_reason == "--gbs, --checkpointing unknown"
