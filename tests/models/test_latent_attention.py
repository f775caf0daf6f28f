"""DeepSeek-V3: latent attention, experts and multi-token prediction, multiplied out by hand and counted by PyTorch."""

from __future__ import annotations

import pytest

from tests.analyzers.tflops.making import answer, by_name


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
