"""Published models, by every convention, against figures that were computed by hand from the papers' formulas."""

from __future__ import annotations

from typing import Any

import pytest

from tests.analyzers.tflops.making import answer, by_name

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
