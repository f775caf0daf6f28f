"""Models of many kinds of layers, against operations per token that others publish."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.analyzers.tflops.making import answer, ask, by_name, refused

STEP = ("--gbs", 64, "--gpus", 8, "--time", 1, "--checkpointing", "none")
_SUMMARY = "NVIDIA-NeMo/Megatron-Bridge 067f987, docs/performance-summary.md"
_ARCHIVE = "NVIDIA-NeMo/Megatron-Bridge 067f987, docs/performance-summary-archive.md"

#: Model, tokens of a sequence, published TFLOPs and tokens/s of a GPU, the convention, and the source.
PUBLISHED = [
    ("DeepSeekV3,mtp_layers=1", 4096, 1635, 6288, "megatron_core", f"{_SUMMARY}, 26.08"),
    ("DeepSeekV3", 4096, 250.45, 1000, "megatron_core", "AI-Hypercomputer/tpu-recipes 0797d9c, training/ironwood"),
    ("DeepSeekV4 Flash,mtp_layers=1", 4096, 748, 8224, "megatron_core", f"{_SUMMARY}, 26.08"),
    (
        "DeepSeekV4 Flash,mtp_layers=1",
        4096,
        92.762352876,
        1000,
        "torchtitan_since_september_2026",
        "pytorch/torchtitan pull request 4441",
    ),
    ("GPT OSS 120B", 4096, 1077, 33024, "megatron_core", f"{_SUMMARY}, 26.08"),
    ("GPT OSS 120B", 4096, 27.16, 1000, "megatron_bridge_before_26_06", f"{_ARCHIVE}, 26.02.01"),
    ("GPT OSS 120B", 8192, 30.77, 1000, "megatron_bridge_before_26_06", f"{_ARCHIVE}, 25.11"),
    ("GPT OSS 120B", 8192, 378.90, 10975.31, "megatron_core", "AI-Hypercomputer/tpu-recipes 0797d9c"),
    ("Kimi_K2", 4096, 204.46, 1000, "megatron_core", f"{_ARCHIVE}, 26.02.01"),
    ("Nemotron_3_Nano", 8192, 22.28, 1000, "megatron_core", f"{_ARCHIVE}, 26.04"),
    ("Nemotron_3_5_Lightning,mtp_layers=2", 8192, 807, 28672, "megatron_core", f"{_SUMMARY}, 26.08"),
    ("Nemotron_3_Super,mtp_layers=2", 8192, 84.7, 1000, "megatron_core", f"{_ARCHIVE}, 26.04"),
    ("Nemotron_3_Ultra,mtp_layers=2", 8192, 1281, 3552, "megatron_core", f"{_SUMMARY}, 26.08"),
    ("Qwen3_30B_a3B", 4096, 1029, 44544, "megatron_core", f"{_SUMMARY}, 26.08"),
    ("Qwen3_235B_a22B", 4096, 1306, 8816, "megatron_core", f"{_SUMMARY}, 26.08"),
    ("LLAMA3.1_70B", 131072, 897.94, 963.03, "megatron_core", "AI-Hypercomputer/tpu-recipes 0797d9c"),
    ("mpt-70b", 2048, 408, 1007, "palm", "mosaicml/llm-foundry 8c8dd48, scripts/train/benchmarking/README.md"),
    ("Grok 1 314b", 8192, 0.4109 * 989 * 512, 399191, "megatron_core", "NVIDIA/dgxc-benchmarking 8f5cbb3, grok1"),
    # Sequences of SQuAD are short, so that attention is below 1 %.
    ("LLAMA3_70B,lora --lengths 200", 4096, 278.09, 1000, "megatron_core", f"{_ARCHIVE}, 26.06, LoRA"),
    ("LLAMA3_70B", 4096, 433.1, 1000, "megatron_core", f"{_ARCHIVE}, 26.06, SFT"),
]


@pytest.mark.parametrize(("model", "seq_len", "tflops", "tokens_per_s", "convention", "source"), PUBLISHED)
def test_published_operations_come_out_within_one_percent(
    model: str, seq_len: int, tflops: float, tokens_per_s: float, convention: str, source: str
) -> None:
    model, *more = model.split(" --lengths ")
    lengths = ("--lengths", *more) if more else ()
    document = answer("tflops", "--model", model, "--seq-len", seq_len, *lengths, *STEP)
    found = (by_name(document) | by_name(document, "variants"))[convention]["flops_per_token"]
    assert found / (tflops / tokens_per_s * 1e12) == pytest.approx(1, abs=0.01), source


def test_a_model_whose_publishers_disagree_says_what_each_of_them_counts() -> None:
    said = " ".join(answer("tflops", "--model", "gpt-oss-120b", *STEP)["explanation"])
    for words in ("27.1", "32.6", "34.5", "no windows", "18 of 36 layers have a sliding window of 128 tokens"):
        assert words in said


def test_the_answer_says_whether_prediction_modules_are_counted() -> None:
    with_module = answer("tflops", "--model", "deepseek-v3,mtp_layers=1", *STEP)["assumed"]
    assert any("with multi-token prediction" in line for line in with_module)
    assert not any("not counted" in line for line in with_module)


def test_packed_sequences_attend_within_their_documents() -> None:
    """Attention of 1,000 and 3,000 tokens costs as in sequences of (1000**2 + 3000**2) / 4000 = 2,500."""
    words = ("tflops", "--model", "llama3-8b", *STEP)
    packed = by_name(answer(*words, "--seq-len", 4000, "--lengths", "1000,3000"))["palm"]
    plain = by_name(answer(*words, "--seq-len", 2500))["palm"]
    by_means = by_name(answer(*words, "--seq-len", 4000, "--lengths", "mean=2000,mean_square=5e6"))["palm"]
    assert packed["flops_per_token"] == plain["flops_per_token"] == by_means["flops_per_token"]
    assert packed["tflops_per_gpu"] == pytest.approx(plain["tflops_per_gpu"] * 4000 / 2500)


def test_sequences_that_vary_have_their_mean_in_a_step(tmp_path: Path) -> None:
    file = tmp_path / "lengths.txt"
    file.write_text("1000\n3000\n")
    document = answer("tflops", "--model", "llama3-8b", *STEP, "--lengths", file)
    assert document["assumptions"]["seq_len"] == 2000
    assert any("mean square 5e+06" in line for line in document["assumed"])


@pytest.mark.parametrize(
    "lengths",
    [
        "",
        "a,b",
        "0",
        "-1",
        "1.5",
        "mean=10,mean_square=5",
        "mean=1e999,mean_square=1",
        "9000",
        "mean=1e300,mean_square=1e300",
        "9" * 400,
        "/dev/zero",
    ],
)
def test_lengths_that_cannot_be_are_refused(lengths: str) -> None:
    assert "--lengths" in refused("tflops", "--model", "llama3-8b", "--seq-len", 4096, *STEP, f"--lengths={lengths}")


def test_a_window_counts_in_the_layers_that_have_it() -> None:
    model = "layers=4,hidden=512,heads=8,vocab=32000"
    words = ("--seq-len", 4096, *STEP)
    full, some, every = (
        by_name(answer("tflops", "--model", f"{model}{more}", *words))["megatron_core"]["flops_per_token"]
        for more in ("", ",window=128,window_layers=2", ",window=128")
    )
    met = 128 - 128 * 127 / (2 * 4096)  # keys that a token meets, the mean over the sequence
    assert full - some == pytest.approx(2 * 6 * 2 * 512 * (2048 - met), abs=1)
    assert full - every == pytest.approx(2 * (full - some), abs=2)
    assert "window_layers" in refused("tflops", "--model", f"{model},window_layers=2", *words)
    assert "kinds of layers" in refused("tflops", "--model", f"{model},window=9,window_layers=5", *words)


def test_the_closed_form_has_no_figure_for_frozen_weights_or_layers_without_attention() -> None:
    for model in ("llama3-8b,lora", "nemotron-3-nano"):
        document = answer("tflops", "--model", model, *STEP)
        assert by_name(document)["megatron_paper"]["flops_per_token"] is None
        assert not any(name.startswith("megatron_paper") for name in by_name(document, "variants"))


def test_the_closed_form_of_a_model_that_it_does_not_describe_is_named() -> None:
    for model, is_named in (("llama3-8b", True), ("gpt3-175b", False), ("nemotron-3-nano", False)):
        assert ("plain MLP of 4h, so that" in ask("tflops", "--model", model, *STEP).stdout) is is_named


def test_a_plan_has_no_memory_for_layers_whose_activations_are_not_known() -> None:
    assert "delta rule" in refused("plan", "--model", "qwen3-next-80b-a3b", "--gpus", 64, "--gpu", "h100-sxm")


def test_the_formula_of_frozen_weights_gives_their_figure() -> None:
    document = answer("tflops", "--model", "llama3-8b,lora", *STEP)
    assert document["formula"].startswith("parameters * (passes - 1) * 2")
    operations = 8_030_261_248 * 2 * 2 * document["assumptions"]["seq_len"] * 64 / 8  # of 3 passes two
    assert document["tflops_per_gpu"] == pytest.approx(operations / 1e12)


def test_frozen_weights_have_neither_gradients_nor_an_optimizer() -> None:
    """MLPerf's LoRA of 70B trains on 8 GPUs of 80 GB; with Adam its states alone are 1.1 TB."""
    words = ("--gpus", 8, "--tp", 4, "--gpu", "h100-sxm", "--checkpointing", "full", "--gbs", 8, "--micro-batch", 1)
    whole, lora = (answer("plan", "--model", model, *words) for model in ("llama2-70b", "llama2-70b,lora"))
    assert lora["memory"][0]["optimizer_bytes"] == lora["memory"][0]["gradients_bytes"] == 0
    assert lora["fits"]
    assert not whole["memory"][0]["fits"]
    assert lora["memory"][0]["weights_bytes"] == whole["memory"][0]["weights_bytes"]
    assert lora["checkpoint"]["optimizer_bytes"] == 0


def test_a_batch_that_no_replicas_divide_is_said_to_be_so() -> None:
    text = ask("plan", "--model", "llama3-8b", "--gpus", 16384, "--gpu", "b200", "--gbs", 1009).stdout
    assert "None is listed: the replicas would have unequal shares" in text
