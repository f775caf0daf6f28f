"""A framework's own TFLOPs, taken from its log and held against the conventions."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.analyzers.tflops.making import FIXTURES, answer, ask, by_name, refused
from tests.sources.joblog.lines import neox

H200_LOG = FIXTURES / "megatron_core_tp2_pp2_h200.iterations.log"
H200_MODEL = ("--model", "layers=16,hidden=2048,heads=16,vocab=32000", "--seq-len", 1024)

#: Lines as Megatron prints them: a grouped, gated, untied model of which 2 of 4 layers have experts.
ARGUMENTS = """
------------------------ arguments ------------------------
  add_bias_linear ................................. False
  bf16 ............................................ True
  ffn_hidden_size ................................. 1024
  global_batch_size ............................... 16
  group_query_attention ........................... True
  hidden_size ..................................... 512
  kv_channels ..................................... 64
  max_position_embeddings ......................... 2048
  moe_ffn_hidden_size ............................. 256
  moe_layer_freq .................................. 2
  moe_router_topk ................................. 2
  moe_shared_expert_intermediate_size ............. None
  normalization ................................... RMSNorm
  num_attention_heads ............................. 8
  num_experts ..................................... 8
  num_layers ...................................... 4
  num_query_groups ................................ 2
  params_dtype .................................... torch.bfloat16
  position_embedding_type ......................... rope
  recompute_granularity ........................... selective
  seq_length ...................................... 2048
  swiglu .......................................... True
  untie_embeddings_and_output_weights ............. True
  world_size ...................................... 8
-------------------- end of arguments ---------------------
 > padded vocab (size: 30000) with 208 dummy tokens (new size: 30208)
"""


def test_the_convention_that_a_log_used_is_marked() -> None:
    words = ("tflops", "--log", H200_LOG, *H200_MODEL, "--gpus", 4, "--gpu", "h200-sxm")
    document = answer(*words)
    assert document["log"]["convention"] == "megatron_core"
    assert document["log"]["steps_with_tflops"] == 15
    assert [each["name"] for each in document["conventions"] if each["used_by_log"]] == ["megatron_core"]
    assert document["inputs"]["gbs"] == 32
    assert document["inputs"]["time_s"] == pytest.approx(0.9128, abs=1e-4)  # the median of iterations 2 to 15
    assert "megatron_core (the log's)" in ask(*words).stdout


@pytest.mark.parametrize(
    "wrong",
    [
        "layers=16,hidden=2048,heads=16,vocab=50304",
        "layers=16,hidden=2048,heads=16,vocab=32000,kv_heads=4",
    ],
)
def test_a_log_of_another_model_is_not_explained(wrong: str) -> None:
    document = answer("tflops", "--log", H200_LOG, "--model", wrong, "--gpus", 4)
    assert document["log"]["convention"] is None
    assert abs(document["log"]["deviation_from_nearest"]) > 0.001


def test_the_model_and_the_step_are_read_from_the_arguments(tmp_path: Path) -> None:
    log = tmp_path / "train.log"
    log.write_text(ARGUMENTS)
    document = answer("tflops", "--log", log, "--time", "1s")
    assert document["assumptions"] == {"gpus": 8, "seq_len": 2048, "checkpointing": "selective"}
    model = document["model"]
    attention = 512 * (512 + 2 * 2 * 64) + 512 * 512
    dense, experts = 3 * 512 * 1024, 8 * 3 * 512 * 256 + 512 * 8
    vectors = 4 * 2 * 512 + 512
    assert model["parameters"] == 4 * attention + 2 * dense + 2 * experts + 2 * 30000 * 512 + vectors
    active = 4 * attention + 2 * dense + 2 * (2 * 3 * 512 * 256) + 512 * 30208
    scores = 6 * 4 * 512 * 2048
    assert by_name(document)["megatron_core"]["flops_per_token"] == 6 * active + scores
    assert model["padded_vocabulary"] == 30208


def test_what_is_typed_goes_before_what_is_read() -> None:
    document = answer("tflops", "--log", H200_LOG, *H200_MODEL, "--gpus", 4, "--gbs", 64, "--time", "2s")
    assert document["inputs"]["gbs"] == 64
    assert document["inputs"]["time_s"] == 2
    assert document["log"]["convention"] == "megatron_core"  # each line has its own batch and time


def _with_iteration(tmp_path: Path, per_token: float, precise: bool) -> Path:
    """A log whose TFLOPs follow from operations per token: batch 16 of 2048 tokens, 8 GPUs, 100 ms."""
    tflops = per_token * 16 * 2048 / 0.1 / 8 / 1e12
    line = " iteration        1/      15 | elapsed time per iteration (ms): 100.0 | throughput per GPU (TFLOP/s/GPU): "
    log = tmp_path / "train.log"
    log.write_text(f"{ARGUMENTS}{line}{tflops:.{9 if precise else 1}f} | global batch size:    16 |\n")
    return log


def test_a_log_from_before_the_attention_was_halved_is_told_apart(tmp_path: Path) -> None:
    log = _with_iteration(tmp_path, 0.0, precise=True)
    others = by_name(answer("tflops", "--log", log, "--time", 1), "variants")
    old = others["megatron_before_2025"]["flops_per_token"]
    document = answer("tflops", "--log", _with_iteration(tmp_path, old, precise=True))
    assert document["log"]["convention"] == "megatron_before_2025"


def test_torchtitans_line_is_compared_per_token(tmp_path: Path) -> None:
    """torchtitan states tokens a second of one GPU beside its TFLOPs, so neither batch nor time is needed."""
    per_token = by_name(answer("tflops", "--model", "llama3-8b", "--gbs", 1, "--time", 1, "--seq-len", 8192))
    tps = 5801
    tflops = per_token["torchtitan"]["flops_per_token"] * tps / 1e12
    log = tmp_path / "titan.log"
    colour = "\x1b[38;2;180;60;60m"
    log.write_text(
        "[rank0]:[titan] 2026-08-21 21:30:21 - root - INFO - step:  1  loss: 12.2  memory: 37.12GiB(46.40%)  "
        "tps: 100  tflops: 5.79  mfu: 0.59%\n"
        f"[rank0]:{colour}step: 10  loss:  8.12  grad_norm: 1.50  memory: 37.12GiB(46.40%)  tps: {tps:,}  "
        f"tflops: {tflops:.2f}  mfu: 34.04%\n"
    )
    document = answer("tflops", "--log", log, "--model", "llama3-8b", "--seq-len", 8192, "--gpu", "h100-sxm")
    assert document["log"]["framework"] == "torchtitan"
    assert document["log"]["convention"] == "torchtitan"
    assert by_name(document)["torchtitan"]["tflops_per_gpu"] == pytest.approx(tflops, rel=1e-4)


def test_a_log_without_a_speed_needs_the_time(tmp_path: Path) -> None:
    log = tmp_path / "train.log"
    log.write_text(ARGUMENTS)
    assert "--time is missing" in refused("tflops", "--log", log)


@pytest.mark.parametrize(
    ("broken", "said"),
    [
        ("hello\n", "not a log of a known framework"),
        (ARGUMENTS.replace("moe_router_topk", "other_topk"), "moe_router_topk"),
        (
            ARGUMENTS.replace("moe_layer_freq .................................. 2", "moe_layer_freq ... [1,0]"),
            "4 layers",
        ),
    ],
)
def test_logs_that_do_not_tell_the_model_are_refused(tmp_path: Path, broken: str, said: str) -> None:
    log = tmp_path / "train.log"
    log.write_text(broken)
    assert said in refused("tflops", "--log", log, "--time", 1)


def test_a_log_without_arguments_does_not_make_a_model() -> None:
    assert "no Megatron arguments" in refused("tflops", "--model", H200_LOG, "--gbs", 1, "--time", 1, code=1)
    assert "which model?" in refused("tflops", "--log", H200_LOG, "--gpus", 4)


def test_a_log_of_another_framework_supplies_what_it_states(tmp_path: Path) -> None:
    log = tmp_path / "neox.log"
    log.write_text("".join(neox(n, 4000.0, 8.0) for n in (1, 2, 3)))
    document = answer("tflops", "--log", log, "--size", "20B", "--gbs", 32, "--gpus", 8)
    assert document["inputs"]["time_s"] == 4
    assert (document["log"]["framework"], document["log"]["label"]) == ("gpt-neox", "approx flops per GPU")


def test_gpus_that_a_log_does_not_state_are_not_assumed() -> None:
    assert "does not state the number of GPUs" in refused("tflops", "--log", H200_LOG, "--size", "1B")
