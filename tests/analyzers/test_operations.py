"""The conventions against ``torch.utils.flop_counter``, which counts every product that PyTorch runs.

The counter sees the whole attention matrix, so it is compared with the forms that count it whole, and with the halved
form after half of the attention is added again.
"""

from __future__ import annotations

from dataclasses import replace
from functools import cache

import pytest

from perfscope.analyzers.tflops import per_token as conventions
from perfscope.models.conventions import Checkpointing
from perfscope.models.parameter_counts import total_parameters
from tests.analyzers.tflops import networks
from tests.analyzers.tflops.networks import Shape, parameters

counted_flops_per_token = cache(networks.counted_flops_per_token)
SEQ_LEN = 96
WITHIN = 0.01

GPT = Shape()
LLAMA = Shape(kv_heads=2, ffn=224, gated=True, vocabulary=384, tied=False)
WIDE_HEADS = Shape(heads=2, kv_heads=1, head_dim=48, gated=True, ffn=160, tied=False)
MIXTURE = Shape(kv_heads=2, ffn=192, gated=True, vocabulary=384, tied=False, experts=4, top_k=2)
SHARED = replace(MIXTURE, shared_ffn=128)


@pytest.mark.parametrize(
    "shape", [GPT, LLAMA, WIDE_HEADS, MIXTURE, SHARED], ids=["gpt", "llama", "wide", "moe", "shared"]
)
def test_the_counter_agrees(shape: Shape) -> None:
    model = shape.described()
    counted = counted_flops_per_token(shape, SEQ_LEN)
    halved = conventions.megatron_core(model, SEQ_LEN) + conventions.scores_and_values(model, SEQ_LEN) // 2
    assert conventions.megatron_whole_attention(model, SEQ_LEN) == pytest.approx(counted, rel=WITHIN)
    assert conventions.torchtitan_with_tied_table(model, SEQ_LEN) == pytest.approx(counted, rel=WITHIN)
    assert halved == pytest.approx(counted, rel=WITHIN)


@pytest.mark.parametrize("shape", [GPT, LLAMA, WIDE_HEADS], ids=["gpt", "llama", "wide"])
def test_a_dense_model_agrees_to_the_last_operation(shape: Shape) -> None:
    assert conventions.megatron_whole_attention(shape.described(), SEQ_LEN) == counted_flops_per_token(shape, SEQ_LEN)


def test_the_gpt_of_the_papers_is_the_counted_one() -> None:
    """72 L h^2 (1 + s/6h + V/12Lh) is exact for multi-head attention and an MLP of 4h."""
    paper = conventions.megatron_paper(GPT.described(), SEQ_LEN, Checkpointing.NONE)
    assert paper == counted_flops_per_token(GPT, SEQ_LEN)


@pytest.mark.parametrize(
    "shape", [GPT, LLAMA, WIDE_HEADS, MIXTURE, SHARED], ids=["gpt", "llama", "wide", "moe", "shared"]
)
def test_parameters_are_those_that_pytorch_stores(shape: Shape) -> None:
    assert total_parameters(shape.described()) == parameters(shape)


@pytest.mark.parametrize("shape", [GPT, LLAMA], ids=["gpt", "llama"])
def test_recomputation_is_the_layers_forward_once_more(shape: Shape) -> None:
    """What full checkpointing adds, counted: the layers, not the output layer."""
    model = shape.described()
    added = counted_flops_per_token(shape, SEQ_LEN, recompute=True) - counted_flops_per_token(shape, SEQ_LEN)
    assert conventions.recomputed_products(model) + conventions.recomputed_scores(model, SEQ_LEN) == added
