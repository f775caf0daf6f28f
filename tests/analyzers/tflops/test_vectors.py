"""Published models, by every convention, against figures that were computed by hand from the papers' formulas."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from benchmarks.log_excerpts import EXCERPTS
from tests.analyzers.tflops.making import answer, by_name
from tests.commands.report_cli import run
from tests.sources.joblog.lines import titan

TOLERANCE = 1e-3

#: Operations per token, forward and backward; the paper's form with 72 is without recomputation, with 96 full.
VECTORS: dict[tuple[str, int], dict[str, float]] = {
    ("gpt3-175b", 2048): {
        "6n": 1.0475e12,
        "bigscience": 1.3966e12,
        "megatron_paper none": 1.07644e12,
        "megatron_paper": 1.4340e12,
        "megatron_core": 1.0619e12,
        "torchtitan": 1.0764e12 - 6 * 51200 * 12288,  # the table is tied
        "torchtitan_since_may_2026": 1.0764e12,
        "palm": 1.0764e12,
    },
    ("llama3-8b", 8192): {
        "6n": 4.818e10,
        "bigscience": 6.424e10,
        "megatron_paper none": 5.4692e10,
        "megatron_paper": 7.187e10,
        "megatron_core": 5.147e10,
        "torchtitan": 5.791e10,
        "palm": 6.107e10,
    },
}


def flops_per_token(document: dict[str, Any], name: str) -> float:
    """From the printed TFLOPs back to operations per token: 64 GPUs, 1 second, 1 sequence."""
    tflops = (by_name(document) | by_name(document, "variants"))[name]["tflops_per_gpu"]
    seq_len = document["assumptions"]["seq_len"]
    return float(tflops) * 1e12 * 64 / int(seq_len)


@pytest.mark.parametrize(("model", "seq_len"), VECTORS)
def test_published_models_have_their_published_operations(model: str, seq_len: int) -> None:
    words = ("tflops", "--model", model, "--seq-len", seq_len, "--gbs", 1, "--time", "1s")
    full, none = answer(*words), answer(*words, "--checkpointing", "none")
    for name, expected in VECTORS[model, seq_len].items():
        convention, _, form = name.partition(" ")
        found = flops_per_token(none if form else full, convention)
        assert found == pytest.approx(expected, rel=TOLERANCE), name


def test_llama_differs_by_27_percent_between_6n_and_palm() -> None:
    document = answer("tflops", "--model", "llama3-8b", "--seq-len", 8192, "--gbs", 1, "--time", 1, "--gpu", "h200-sxm")
    found = by_name(document)
    assert found["palm"]["mfu"] / found["6n"]["mfu"] == pytest.approx(1.27, abs=0.005)
    assert found["torchtitan"]["mfu"] / found["megatron_core"]["mfu"] == pytest.approx(1.125, abs=0.001)
    assert any("26.7%" in line for line in document["explanation"])


#: torchtitan 1ea476e (2024-04-24), docs/performance.md, 64 A100: model, sequence length, tokens/s a GPU, MFU in %.
TORCHTITAN_TABLES = [
    ("llama3-8b", 8192, 2904, 56.8),
    ("llama3-70b", 8192, 331, 51.7),
]


@pytest.mark.parametrize(("model", "seq_len", "rate", "printed"), TORCHTITAN_TABLES)
def test_torchtitans_tables_count_the_embedding_table_as_its_code_then_did(
    model: str, seq_len: int, rate: int, printed: float
) -> None:
    document = answer(
        "tflops", "--model", model, "--seq-len", seq_len, "--gbs", 1, "--gpus", 1, "--gpu", "a100-80",
        "--time", f"{seq_len / rate}s",
    )  # fmt: skip
    found, older = by_name(document), by_name(document, "variants")
    rounding = 0.05 + printed * 0.5 / rate
    assert 100 * older["torchtitan_before_april_2024"]["mfu"] == pytest.approx(printed, abs=rounding)
    assert older["torchtitan_before_april_2024"]["flops_per_token"] == found["palm"]["flops_per_token"]
    assert "published tables" in older["torchtitan_before_april_2024"]["printed_by"]
    # Since April 2024 the table would have said less.
    assert printed - 100 * found["torchtitan"]["mfu"] > rounding


@pytest.mark.parametrize("modules", [0, 1])
def test_deepseek_v3_by_hand(modules: int) -> None:
    """arXiv 2412.19437, section 4.2: 61 layers, 3 of them dense; 8 of 256 experts and a shared one of 2048 each."""
    hidden, heads, q_rank, kv_rank, nope, rope, value = 7168, 128, 1536, 512, 128, 64, 128
    seq_len, vocabulary = 4096, 129280
    query = q_rank * (hidden + heads * (nope + rope) + 1)
    key_and_value = kv_rank * (hidden + heads * (nope + value) + 1) + hidden * rope
    attention = query + key_and_value + heads * value * hidden
    dense, sparse = 3 * hidden * 18432, 3 * hidden * (8 + 1) * 2048
    layers = 61 + modules
    products = layers * attention + 3 * dense + (58 + modules) * sparse
    products += modules * (3 * hidden + 2 * hidden**2) + (1 + modules) * hidden * vocabulary
    causal = layers * seq_len * (heads * (nope + rope) + heads * value) / 2
    model = f"deepseek-v3,mtp_layers={modules}" if modules else "deepseek-v3"
    document = answer("tflops", "--model", model, "--seq-len", seq_len, "--gbs", 1, "--time", 1)
    assert by_name(document)["megatron_core"]["flops_per_token"] == 6 * (products + causal)


NANOTRON = "layers=16,hidden=2048,heads=32,ffn=8192,vocab=131072,gated,tied"
LINE = (
    "[INFO|DP=0|PP=0|TP=0]: iteration: {step} / 10 | consumed_tokens: 9.44M | time_per_iteration_ms: {ms} | "
    "tokens_per_sec: {rate} | tokens_per_sec_per_gpu: {single} | global_batch_size: 1.05M | lm_loss: 7 | "
    "model_tflops_per_gpu: {tflops} | hardware_tflops_per_gpu: {tflops}\n"
)


def own(capsys: pytest.CaptureFixture[str], log: Path, *options: object) -> dict[str, Any]:
    found: dict[str, Any] = run(capsys, "tflops", "--log", log, "--format", "json", *options).data["log"]
    return found


@pytest.mark.parametrize(
    ("row", "convention"),
    [  # MFU 39.2 % at 40,150 tokens/s and 44.3 % at 38,895, of 989.5 TFLOP/s, on eight GPUs
        ({"ms": "3.26K", "rate": "321K", "single": "40.2K", "tflops": 388}, "megatron_before_2025"),
        ({"ms": "3.37K", "rate": "311K", "single": "38.9K", "tflops": 438}, "tied_embedding_twice"),
    ],
)
def test_a_tied_embedding_that_counts_on_two_stages(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, row: dict[str, Any], convention: str
) -> None:
    """The ultra-scale playbook's 1B model without a pipeline and with one of two stages."""
    log = tmp_path / "run.log"
    log.write_text("".join(LINE.format(step=step, **row) for step in range(1, 9)))
    found = own(capsys, log, "--model", NANOTRON, "--gbs", 256, "--gpus", 8, "--seq-len", 4096)
    assert (found["convention"], found["steps_with_tflops"]) == (convention, 8)
    assert "first and on the last pipeline stage" in " ".join(found["why"]) or convention != "tied_embedding_twice"


@pytest.mark.parametrize(
    ("cells", "convention"),
    [  # Llama 3 8B on eight GPUs, as two guides of others print them: 57.9 and 51.5 GFLOP/token
        ("train_step_timing in s: 6.08 | TFLOPS_per_GPU: 1.249e+03", "megatron_before_2025"),
        ("train_step_timing in s: 3.684 | TFLOPS_per_GPU: 1.831e+03", "megatron_core"),
    ],
)
def test_nemo_counts_the_whole_attention_or_half(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, cells: str, convention: str
) -> None:
    head = "Training epoch 0, iteration {0}/99 | lr: 6.9e-06 | global_batch_size: 128 | global_step: {0} | "
    log = tmp_path / "run.log"
    text = f"{head}max_memory_reserved: 127785762816 | reduced_train_loss: 11.96 | {cells} | consumed_samples: 5888\n"
    log.write_text("".join(text.format(step) for step in range(1, 9)))
    found = own(capsys, log, "--model", "llama3-8b", "--gpus", 8, "--seq-len", 8192)
    assert (found["convention"], found["label"]) == (convention, "TFLOPS_per_GPU")
    assert bool(found["why"]) is (convention != "megatron_core")


def test_nanogpts_mfu_is_of_an_a100(capsys: pytest.CaptureFixture[str]) -> None:
    """A log of nanoGPT issue 110: 0.96 % of 312 TFLOP/s are 0.30 % of an H100."""
    options = ("--model", "gpt2-small", "--gpus", 1, "--gbs", 8)
    log = EXCERPTS / "nanogpt-2024.log"
    reason, share = own(capsys, log, *options, "--gpu", "h100")["why"]
    assert "A100" in reason
    assert "0.303 % of the 989.4" in share
    assert len(own(capsys, log, *options, "--gpu", "a100")["why"]) == 1


def test_torchtitans_peak_is_that_of_the_gpu_or_is_named(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    """336.63 TFLOP/s and 34.04 % are of an H100's 989; the same figures say what they are of on an H20."""
    log = tmp_path / "run.log"
    log.write_text("".join(titan(step, f"22:31:{step:02d},970") for step in range(1, 9)))
    options = ("--model", "llama3-8b", "--gpus", 8, "--seq-len", 8192)
    assert not [why for why in own(capsys, log, *options, "--gpu", "h100")["why"] if "MFU" in why]
    assert any("of about 989 TFLOP/s" in why for why in own(capsys, log, *options, "--gpu", "b200")["why"])


def test_an_mfu_below_zero_is_of_a_gpu_that_llm_c_does_not_know(capsys: pytest.CaptureFixture[str]) -> None:
    log = EXCERPTS / "llm-c.log"
    [why] = own(capsys, log, "--model", "gpt2-small", "--gpus", 1, "--gbs", 8, "--gpu", "b200")["why"]
    assert "does not list the GPU" in why
