"""The share of the peak by counters is activity times clock, of undisturbed steps, beside the counted one."""

from __future__ import annotations

import dataclasses
import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from benchmarks import kept_run
from perfscope.analyzers import mfu
from perfscope.analyzers.steps import analyze as analyze_steps
from perfscope.analyzers.tflops.counter_check import CounterCheck
from perfscope.engine import run as engine
from perfscope.models.hardware import lookup_gpu
from perfscope.sources.runs.run import read_run
from perfscope.tables.stated import Stated
from tests.conftest import ROOT

RUN = ROOT / "fixtures" / "runs" / "h200_zero1"
PEAK_CLOCK_MHZ = 989.4e12 / (132 * 4096) / 1e6
WINDOW_NS = 200_000_000


def sampled(folder: Path, activity: Callable[[int], int | None]) -> CounterCheck:
    """The check of a real run, to whose samples GPM's are added: an activity in millionths, None for none."""
    run = folder / "run"
    shutil.copytree(RUN, run)
    for path in (run / "nvml").glob("*.jsonl"):
        lines: list[dict[str, Any]] = [json.loads(line) for line in path.read_text().splitlines()]
        for line in lines[1:]:
            ppm = activity(line["t_ns"])
            for gpu in line.get("gpus", ()) if ppm is not None else ():
                gpu |= {"tensor_activity_ppm": ppm, "sm_activity_ppm": 900_000}
                gpu |= {"gpm_from_ns": line["t_ns"] - WINDOW_NS, "gpm_to_ns": line["t_ns"], "sm_clock_mhz": 1525}
        path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    return analyze(run).by_counters


def analyze(run: Path) -> mfu.Utilisation:
    return mfu.analyze(replace(read_run(run), stated=Stated(precision="bf16")))


def text(check: CounterCheck) -> str:
    return " ".join(note for section in check.sections() for note in section.notes)


def test_the_clock_of_the_peak_is_that_of_the_datasheets_operations() -> None:
    for name in ("h100-sxm", "h200-sxm", "gh200"):
        gpu = lookup_gpu(name)
        assert gpu is not None
        assert gpu.tensor_clock_mhz == pytest.approx(PEAK_CLOCK_MHZ, rel=0.001)
    unknown = lookup_gpu("a100-40")
    assert unknown is not None
    assert unknown.tensor_clock_mhz is None


def test_activity_times_clock_is_the_share_of_the_peak(tmp_path: Path) -> None:
    check = sampled(tmp_path, lambda _: 480_000)
    assert check.utilisation == pytest.approx(0.48 * 1525 / 1830, rel=1e-6)
    assert len(check.gpus) == 4
    assert {gpu.sm_occupancy for gpu in check.gpus} == {None}
    assert {gpu.sm_activity for gpu in check.gpus} == {0.9}
    assert check.counted is not None
    assert check.utilisation is not None
    assert check.difference == pytest.approx(check.utilisation - check.counted)


def test_counters_that_agree_and_counters_that_do_not_are_told_apart(tmp_path: Path) -> None:
    counted = analyze(RUN).headline.mfu
    assert counted is not None
    ran = round(1e6 * counted * 1830 / 1525)
    assert "agree within" in text(sampled(tmp_path / "same", lambda _: ran))
    assert "padding of tiles" in text(sampled(tmp_path / "more", lambda _: ran + 100_000))
    assert "did not run" in text(sampled(tmp_path / "less", lambda _: ran - 100_000))


def test_samples_outside_of_undisturbed_steps_do_not_count(tmp_path: Path) -> None:
    run = read_run(RUN)
    steps = run.steps[0]
    middle = int(steps.end_ns[len(steps.end_ns) // 2])
    last = int(steps.end_ns[-1])
    check = sampled(tmp_path, lambda t_ns: 500_000 if middle < t_ns < last else 0 if t_ns > last + WINDOW_NS else None)
    assert {gpu.tensor_activity for gpu in check.gpus} == {0.5}


def test_without_samples_there_is_a_reason_and_no_section(tmp_path: Path) -> None:
    check = sampled(tmp_path, lambda _: None)
    assert (check.utilisation, check.sections()) == (None, ())
    assert check.reason is not None
    assert "--gpm" in check.reason
    assert check.data()["reason"] == check.reason  # type: ignore[call-overload, index]


def test_counters_and_operations_of_a_real_training_are_of_the_same_windows() -> None:
    """Its steps after the window are 4 % slower than those before, of which the median step is."""
    utilisation = analyze(ROOT / "fixtures" / "runs" / "gpm_h200")
    check = utilisation.by_counters
    assert check.counted is not None
    assert check.difference is not None
    assert [(gpu.ranks, gpu.windows) for gpu in check.gpus] == [((0,), 6)]
    (gpu,) = check.gpus
    assert utilisation.headline.mfu is not None
    assert 0.9 < check.counted / utilisation.headline.mfu < 1
    assert check.difference == pytest.approx(check.counted * 0.11, abs=0.02)  # the GPU is at its power limit
    assert gpu.steps == pytest.approx(gpu.duration_ns / 155e6, rel=0.02)


def test_what_was_recomputed_counts_as_what_ran() -> None:
    run = read_run(ROOT / "fixtures" / "runs" / "gpm_h200")
    stated = Stated(precision="bf16")
    plain = mfu.analyze(replace(run, stated=stated)).by_counters.counted
    models = tuple(dataclasses.replace(model, checkpointing="full") for model in run.models)
    again = mfu.analyze(replace(run, stated=stated, models=models)).by_counters.counted
    assert plain is not None
    assert again is not None
    # the layers' products, 12 h^2 a layer, and half of the attention matrix, once more
    layers, hidden, seq_len, vocabulary = 12, 2048, 2049, 50304
    layer = 2 * layers * (12 * hidden**2 + seq_len * hidden)
    assert again / plain - 1 == pytest.approx(layer / (3 * (layer + 2 * hidden * vocabulary)), rel=0.001)


def test_the_last_product_of_a_checkpoint_did_not_run_where_the_trace_shows_no_kernel_of_it() -> None:
    run = kept_run(ROOT / "fixtures" / "runs" / "gpm_h200_recomputed")
    result = engine.analyze([run], engine.Plan(only=frozenset({"mfu"}))).results["mfu"]
    assert isinstance(result, mfu.Utilisation)
    assert result.counted is not None
    # of each of twelve layers the product of four times the hidden size with the hidden size
    assert result.counted.skipped_flops_per_token == pytest.approx(12 * 2 * 4 * 2048**2 * 2048 / 2049, rel=0.001)
    assert result.mfu is not None
    (gpu,) = result.by_counters.gpus
    step_s = analyze_steps(read_run(run)).step_time_s
    assert step_s is not None
    needed = result.mfu * gpu.steps * step_s * 1e9 / gpu.duration_ns
    assert (result.by_counters.counted or 0) / needed - 1 == pytest.approx(0.2, abs=0.01)


def test_at_the_power_limit_active_cycles_amount_to_more_than_products_of_known_size() -> None:
    gpu = lookup_gpu("h200-sxm")
    assert gpu is not None
    rates: dict[tuple[bool, str], list[float]] = {}
    for phase in json.loads((ROOT / "fixtures" / "flops" / "gpm.json").read_text()):
        activity = sum(share * mhz for share, mhz in phase["windows"]) / len(phase["windows"])  # in MHz
        rate = phase["tflops"] / (gpu.dense_tflops[phase["dtype"]] * activity / PEAK_CLOCK_MHZ)
        rates.setdefault((phase["is_capped"], phase["dtype"]), []).append(rate)
    assert rates[True, "bf16"] == pytest.approx([0.9] * 4, abs=0.02)
    assert rates[False, "bf16"] + rates[False, "fp8"] == pytest.approx([1.0] * 7, abs=0.08)
