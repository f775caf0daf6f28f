"""``perfscope plan`` with a batch: the configurations that fit, fastest first, and their calibration."""

from __future__ import annotations

import csv
import gzip
from pathlib import Path
from typing import Any

import pytest

from tests.analyzers.tflops.making import answer, ask, refused
from tests.conftest import ROOT

TABLE = ROOT / "fixtures" / "published" / "step_times.csv.gz"
#: NVIDIA's own configuration of Llama 3.1 70B on 64 H100 (dgxc-benchmarking 8f5cbb3): 14.61 s a step.
LLAMA = ("plan", "--model", "llama3-70b", "--gpus", 64, "--gpu", "h100-sxm", "--seq-len", 8192, "--gbs", 128)
NVIDIA = ("--tp", 4, "--pp", 4, "--cp", 2, "--virtual-stages", 5, "--micro-batch", 1, "--zero", 1)
GPT = ("plan", "--model", "layers=12,hidden=2048,heads=16,vocab=50304,tied", "--gpus", 4, "--gpu", "h200-sxm")
TYPED = ("--seq-len", 1024, "--gbs", 64, "--micro-batch", 8, "--tp", 1, "--pp", 1, "--checkpointing", "none")


def test_the_layout_that_nvidia_chose_is_the_fastest_that_fits_and_takes_what_it_measured() -> None:
    found = answer(*LLAMA)["configurations"]
    best = next(one for one in found if one["fit_probability"] >= 0.9)
    assert [best[degree] for degree in ("tp", "pp", "cp", "zero", "micro_batch")] == [4, 4, 2, 1, 1]
    assert [one["step_s"] for one in found] == sorted(one["step_s"] for one in found)
    answered = answer(*LLAMA, *NVIDIA, "--checkpointing", "none")
    (own,), (memory,) = answered["configurations"], answered["memory"]
    assert own["reserved_bytes"] == memory["reserved_bytes"]
    assert own["step_s"] == pytest.approx(14.61, rel=0.05)
    assert own["interval_s"][0] < 14.61 < own["interval_s"][1]
    assert own["mfu"] == pytest.approx(0.5452 * 14.61 / own["step_s"], rel=0.08)  # by NVIDIA's own count of operations


def test_sharding_is_compared_within_one_software_as_tuned_software_took() -> None:
    """Llama 3 70B on 128 H100, of 256 sequences: MaxText's FSDP took 15.56 s, NeMo with TP 4, PP 4, CP 2 14.6 s."""
    words = ("plan", "--model", "llama3-70b", "--gpus", 128, "--gpu", "h100-sxm", "--seq-len", 8192, "--gbs", 256)
    found = {tuple(one[degree] for degree in ("tp", "pp", "cp")): one for one in answer(*words)["configurations"]}
    sharded, split = found[1, 1, 1], found[4, 4, 2]
    assert sharded["zero"] == 3
    assert sharded["step_s"] == pytest.approx(15.56, rel=0.05)
    assert split["step_s"] == pytest.approx(14.6, rel=0.05)
    (alone,) = answer(*words, "--zero", 3, "--tp", 1, "--pp", 1, "--cp", 1)["configurations"]
    assert alone["step_s"] > 1.2 * sharded["step_s"]  # Composer


def test_nanotron_is_planned_as_it_ran() -> None:
    """8B on 64 H100: the fastest of 72 layouts, TP 1 and PP 2 with ZeRO 1, took 2.50 s, TP 2 took 2.51 s."""
    words = ("plan", "--model", "nanotron-8b", "--gpus", 64, "--gpu", "h100-sxm", "--seq-len", 4096, "--gbs", 256)
    found = answer(*words, "--states", "nanotron", "--checkpointing", "none")["configurations"]
    assert {one["zero"] for one in found} <= {0, 1}
    assert {one["virtual_stages"] for one in found} == {1}
    steps = {(one["tp"], one["pp"], one["micro_batch"]): one["step_s"] for one in found}
    assert steps[1, 2, 1] == pytest.approx(2.50, rel=0.05)
    assert min(steps.values()) == pytest.approx(2.50, rel=0.08)


def test_layers_that_do_not_divide_are_spread_as_llama_3_405b_was() -> None:
    """126 layers on 16 stages; 430 TFLOPs per GPU of 8,192 H100 (arXiv 2407.21783, table 4) are 12.1 s a step."""
    words = ("plan", "--model", "llama3-405b", "--gpus", 8192, "--gpu", "h100-sxm", "--seq-len", 8192, "--gbs", 2048)
    fastest, *others = answer(*words)["configurations"]
    assert (fastest["tp"], fastest["pp"]) == (8, 16)
    assert fastest["interval_s"][0] < 12.1 < fastest["interval_s"][1]
    assert all(one["step_s"] / fastest["step_s"] > 1.05 for one in others if one["pp"] == 64)  # two layers a stage


def test_every_micro_batch_that_divides_is_tried_and_one_replica_shards_nothing() -> None:
    """nanoGPT trains GPT-2 with 12 sequences in a micro-batch, 480 in a step (its config/train_gpt2.py)."""
    words = ("plan", "--model", "gpt2-small", "--gpus", 8, "--gpu", "a100-40", "--gbs", 480)
    found = answer(*words)["configurations"]
    (nanogpt,) = answer(*words, "--micro-batch", 12, "--tp", 1, "--pp", 1, "--cp", 1)["configurations"]
    assert found[0]["step_s"] <= nanogpt["step_s"]
    assert {one["zero"] for one in found if one["dp"] * one["cp"] == 1} == {0}


@pytest.mark.parametrize(
    ("words", "measured"),
    [
        (("--gpus", 256, "--gpu", "h100-sxm", "--gbs", 8192, "--pp", 8, "--virtual-stages", 4, "--ep", 32), 78.9),
        (("--gpus", 64, "--gpu", "gb200", "--gbs", 1024, "--pp", 1, "--ep", 64), 14.72),
    ],
)
def test_experts_spread_over_tensor_ranks_take_what_nvidia_measured(
    words: tuple[str | int, ...], measured: float
) -> None:
    """Qwen3 235B in Megatron-Bridge: more expert-parallel ranks than replicas; of four releases the median."""
    plan = ("plan", "--model", "qwen3-235b-a22b", "--seq-len", 4096, "--dtype", "fp8", "--micro-batch", 1, "--tp", 2)
    (one,) = answer(*plan, *words, "--zero", 1, "--checkpointing", "none")["configurations"]
    assert one["ep"] > one["dp"]
    assert one["step_s"] == pytest.approx(measured, rel=0.1)


def test_tensor_parallelism_reaches_as_far_as_the_fast_link() -> None:
    words = ("plan", "--model", "llama3-405b", "--gpus", 128, "--seq-len", 8192, "--gbs", 128, "--pp", 1)
    for gpu, most in (("b200-sxm", 8), ("gb200", 64)):
        assert max(one["tp"] for one in answer(*words, "--gpu", gpu)["configurations"]) == most


def test_options_restrict_the_list_and_the_terms_are_the_step() -> None:
    found = answer(*LLAMA, "--tp", 8, "--zero", 1)["configurations"]
    assert {(one["tp"], one["zero"]) for one in found} == {(8, 1)}
    for one in found:
        assert one["tp"] * one["pp"] * one["cp"] * one["dp"] == 64
        assert one["dp"] * one["micro_batch"] * one["micro_batches"] == 128
        assert sum(one["terms_ns"].values()) == pytest.approx(one["step_s"] * 1e9, abs=1)
    text = ask(*LLAMA, "--tp", 8, "--zero", 1, "--why").stdout
    title = text.splitlines()[0]
    best = next(one for one in found if one["fit_probability"] >= 0.9)
    assert title.startswith(f"# {best['step_s']:.3g} s a step (")
    assert " with TP 8, " in title
    assert "MFU " in title
    assert "What fits" not in text
    assert "tensor-parallel communication" in text
    assert "NVIDIA/dgxc-benchmarking" in text
    assert "1T tokens take 164.4 days" in ask(*LLAMA, "--tokens", "1T").stdout  # NVIDIA states 161.3
    assert "In 164.4 days the title's configuration trains 1T tokens" in ask(*LLAMA, "--days", 164.4).stdout


def test_the_title_names_the_fastest_that_surely_fits() -> None:
    tight, sure, *_ = answer(*LLAMA)["configurations"]
    assert tight["fit_probability"] < 0.9 <= sure["fit_probability"]
    assert tight["step_s"] < sure["step_s"]
    title, *lines = ask(*LLAMA).stdout.splitlines()
    assert title.startswith(f"# {sure['step_s']:.3g} s a step (")
    assert [" tight " in line for line in lines if line.startswith("|    4 |")][:2] == [True, False]


def test_a_measured_run_is_met_and_moves_its_neighbours(tmp_path: Path) -> None:
    """The run of DeepSpeed on four H200 took 164.1 ms; the constants of NeMo alone are 23 % off."""
    run = ROOT / "fixtures" / "runs" / "h200_zero1"
    before = answer(*GPT, *TYPED, "--zero", 1)["configurations"][0]["step_s"]
    after = answer(*GPT, *TYPED, "--zero", 1, "--calibrate", run)["configurations"][0]
    assert before == pytest.approx(0.164, rel=0.3)
    assert after["step_s"] == pytest.approx(0.1641, rel=0.02)
    low, high = after["interval_s"]
    assert high / low < 1.25
    assert "1 measured step and traced kernels" in ask(*GPT, *TYPED, "--zero", 1, "--calibrate", run).stdout
    wide = answer(*GPT, *TYPED[:4], "--micro-batch", 1, "--zero", 1, "--calibrate", run)["configurations"][0]
    assert wide["interval_s"][1] / wide["interval_s"][0] > high / low


def test_a_log_calibrates_and_what_states_too_little_is_refused() -> None:
    log, other = (
        ROOT / "fixtures" / "logs" / f"{name}_h200.log" for name in ("deepspeed_pp4", "megatron_core_tp2_pp2")
    )
    words = ("--seq-len", 1024, "--gbs", 32, "--micro-batch", 4, "--pp", 4, "--checkpointing", "none")
    assert "Calibrated by 1 measured step without traces, from" in ask(*GPT, *words, "--calibrate", log).stdout
    assert "states no number of GPUs" in refused(*GPT, *words, "--calibrate", other, code=1)


def test_a_log_of_a_mixture_is_met_at_its_expert_parallel_size(tmp_path: Path) -> None:
    """Qwen3 235B on 256 H100 as Megatron prints it: 32 expert-parallel ranks, half as long again as NVIDIA's 78.9 s."""
    sizes = {"world_size": 256, "tensor_model_parallel_size": 2, "pipeline_model_parallel_size": 8, "seq_length": 4096}
    sizes |= {"expert_model_parallel_size": 32, "micro_batch_size": 1, "global_batch_size": 8192}
    lines = ["using world size: 256, data-parallel size: 16, tensor-model-parallel size: 2"]
    lines += [f"  {name} {'.' * (48 - len(name))} {value}" for name, value in sizes.items()]
    lines += [
        f" iteration {step:8}/ 100 | elapsed time per iteration (ms): 118350.0 | global batch size: 8192 |"
        for step in range(1, 9)
    ]
    log = tmp_path / "qwen.log"
    log.write_text("\n".join(lines))
    words = ("plan", "--model", "qwen3-235b-a22b", "--gpus", 256, "--gpu", "h100-sxm", "--seq-len", 4096, "--gbs", 8192)
    typed = ("--dtype", "fp8", "--tp", 2, "--pp", 8, "--virtual-stages", 4, "--micro-batch", 1, "--zero", 1)
    plan = (*words, *typed, "--checkpointing", "none", "--calibrate", log)
    own, other = (answer(*plan, "--ep", expert)["configurations"][0] for expert in (32, 16))
    assert own["step_s"] == pytest.approx(118.35, rel=0.02)
    assert own["interval_s"][1] < 1.15 * own["step_s"]
    assert other["interval_s"][1] > 1.5 * other["step_s"]


def test_a_calibration_says_how_far_its_steps_are_from_the_prediction(tmp_path: Path) -> None:
    """The run's own model and length count, whatever is planned; milliseconds and copies are found out."""
    words = ("plan", "--model", "llama3-8b", "--gpus", 8, "--gpu", "h200-sxm", "--seq-len", 8192, "--gbs", 16)
    assert "They take 1.2 times" in ask(*words, "--calibrate", ROOT / "fixtures" / "runs" / "h200_zero1").stdout
    path = tmp_path / "own.csv"
    row = "llama3-8b,h200,8,8192,1,16,1900"
    path.write_text("\n".join(("model,gpu,gpus,seq_len,micro_batch,gbs,step_s", row, row, row.replace(",8,", ",-8,"))))
    told = ask(*words, "--calibrate", path).stdout
    assert "Calibrated by 1 measured step without traces," in told
    assert "are they seconds, and of this model?" in told
    assert "gpus is -8" in told


def test_a_ceiling_of_the_machine_limits_what_steps_reach() -> None:
    """The H200 of this file multiplies at 0.79 of its peak: less than the constants say."""
    words = ("plan", "--model", "llama3-8b", "--gpus", 2, "--gpu", "h200-sxm", "--seq-len", 2048, "--gbs", 16, "--why")
    limited = ask(*words, "--calibrate", ROOT / "fixtures" / "modules" / "ceiling.json").stdout
    assert "No share of a peak is higher than `perfscope doctor --ceiling` measured" in limited
    assert "products 0.791" in limited
    assert "products 0.84" in ask(*words).stdout


def test_what_was_never_measured_says_so_and_has_a_wide_interval() -> None:
    words = ("plan", "--gpus", 64, "--seq-len", 4096, "--gbs", 256)
    for model, gpu, factor in (("llama3-8b", "b200-sxm", 1.57), ("mixtral-8x7b", "h100-sxm", 2)):
        what = ("--model", model, "--gpu", gpu)
        first = answer(*words, *what)["configurations"][0]
        assert first["interval_s"][1] / first["step_s"] == pytest.approx(factor)
        assert "Not calibrated" in ask(*words, *what).stdout


def test_a_table_of_ones_own_is_judged_and_calibrates(tmp_path: Path) -> None:
    lines = list(csv.reader(gzip.decompress(TABLE.read_bytes()).decode().splitlines()))
    own = [lines[0], *(line for line in lines[1:] if line[0] == "dgxc" and line[3:5] == ["80", "8192"])]
    path = tmp_path / "own.csv"
    path.write_text("\n".join(",".join(line) for line in own))
    document: dict[str, Any] = answer("plan", "--calibrate", path)
    (source,) = document["sources"]
    assert source["calibrated"]["median"] < 0.03
    assert "measured step predicted from the others" in ask(*LLAMA, *NVIDIA, "--calibrate", path).stdout
    path.write_text(
        "model,gpu,gpus,seq_len,micro_batch,gbs,tp,step_s\n"
        "llama3-8b,h100,8,8192,1,16,2,1.9\nllama9,h100,8,8192,1,16,2,1\n"
    )
    answered = ask("plan", "--calibrate", path).stdout
    assert "1 measured step beside" in answered
    assert "the model 'llama9' is unknown" in answered
    path.write_text("gpu,gpus\nh100-sxm,8\n")
    assert "has no column seq_len" in refused("plan", "--calibrate", path, code=1)
    path.write_text("model,gpu,gpus,seq_len,micro_batch,gbs,step_s\nllama3-8b,h100,8,8192,1,16,\n")
    assert "has no row with a step time" in refused("plan", "--calibrate", path, code=1)
    assert "has no row with a step time" in refused(*LLAMA, "--calibrate", path, code=1)
    assert "is a folder, and no run of perfscope profile" in refused(*LLAMA, "--calibrate", tmp_path, code=1)


@pytest.mark.parametrize(
    ("words", "reason"),
    [
        (("plan", "--model", "llama3-8b", "--gpus", 8, "--why"), "configurations need --gpu and --gbs"),
        ((*LLAMA[:5], "--gpu", "h10O", "--gbs", 128), "did you mean h100-sxm? known: v100-16, "),
        ((*LLAMA, "--network", 0), "--network must be positive"),
        ((*LLAMA, "--calibrate", TABLE), "measured steps are too many to calibrate by"),
        ((*LLAMA, "--peak", 500), "by the peak of --gpu's datasheet"),
        (("plan", "--calibrate", "README.md"), "is no table of measured steps"),
    ],
)
def test_what_cannot_be_answered_is_refused(words: tuple[str | int, ...], reason: str) -> None:
    assert reason in refused(*words)
