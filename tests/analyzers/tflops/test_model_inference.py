"""Dimensions by shapes and configurations of published models, against the operations that their own code counts.

torchtitan's figures are what ``get_nparams_and_flops`` of its v0.2.2 returns for the model on the ``meta`` device. The
others follow from the number of parameters that transformers 5.23 builds from the published configuration.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest

from perfscope.analyzers.tflops import per_token
from perfscope.analyzers.tflops.model_inference import infer_dimensions
from perfscope.errors import MissingInput
from perfscope.models.parameter_counts import total_parameters
from perfscope.models.transformer import Transformer
from perfscope.sources.models.config_fields import read_stated
from perfscope.tables.model import StatedDimensions, Weight

LAYER = "layers.*"


def table(rows: int, hidden: int, name: str = "tok_embeddings.weight") -> Weight:
    return Weight(name, True, (rows, hidden), 1)


def matrix(name: str, shape: tuple[int, ...], count: int, parts: int = 1) -> Weight:
    return Weight(name, False, shape, count, parts)


def attention(layers: int, hidden: int, width: int, keys: int) -> list[Weight]:
    """Attention as torchtitan names it."""
    shapes = {"wq": (width, hidden), "wk": (keys, hidden), "wv": (keys, hidden), "wo": (hidden, width)}
    return [matrix(f"{LAYER}.attention.{name}.weight", shape, layers) for name, shape in shapes.items()]


def latent_attention(layers: int, hidden: int, heads: int) -> list[Weight]:
    """Latent attention of DeepSeek without compressed queries, as torchtitan names it."""
    shapes = {
        "wq.weight": (heads * 192, hidden),
        "wkv_a.weight": (512 + 64, hidden),
        "kv_norm.weight": (512,),
        "wkv_b.weight": (heads * 256, 512),
        "wo.weight": (hidden, heads * 128),
    }
    return [matrix(f"{LAYER}.attention.{name}", shape, layers) for name, shape in shapes.items()]


def mlp(layers: int, hidden: int, ffn: int, name: str = "feed_forward") -> list[Weight]:
    shapes = {"w1": (ffn, hidden), "w2": (hidden, ffn), "w3": (ffn, hidden)}
    return [matrix(f"{LAYER}.{name}.{part}.weight", shape, layers) for part, shape in shapes.items()]


def experts(layers: int, hidden: int, ffn: int, number: int) -> list[Weight]:
    """A mixture whose experts of a layer are one tensor, as torchtitan names it."""
    shapes = {"w1": (number, ffn, hidden), "w2": (number, hidden, ffn), "w3": (number, ffn, hidden)}
    stacked = [matrix(f"{LAYER}.moe.experts.{part}", shape, layers) for part, shape in shapes.items()]
    return [*stacked, matrix(f"{LAYER}.moe.router.gate.weight", (number, hidden), layers)]


def norms(layers: int, hidden: int, head: int = 0) -> list[Weight]:
    return [
        matrix(f"{LAYER}.attention_norm.weight", (hidden,), layers),
        matrix(f"{LAYER}.ffn_norm.weight", (hidden,), layers),
        matrix("norm.weight", (hidden,), 1),
        *([matrix(f"{LAYER}.attention.{name}_norm.weight", (head,), layers) for name in "qk"] if head else []),
    ]


QWEN3 = [table(151936, 1024), *attention(28, 1024, 2048, 1024), *mlp(28, 1024, 3072), *norms(28, 1024, 128)]
QWEN3_MOE = [
    table(151936, 2048),
    *attention(48, 2048, 4096, 512),
    *experts(48, 2048, 768, 128),
    *norms(48, 2048, 128),
    matrix("output.weight", (151936, 2048), 1),
]
DEEPSEEK_DEBUG = [
    table(2048, 256),
    *latent_attention(6, 256, 16),
    *mlp(1, 256, 1024),
    *experts(5, 256, 256, 8),
    *mlp(5, 256, 512, "moe.shared_experts"),
    *norms(6, 256),
    matrix("output.weight", (2048, 256), 1),
]
GPT_OSS = [
    table(201088, 2880),
    *attention(24, 2880, 4096, 512),
    *(matrix(f"{LAYER}.attention.{name}.bias", (size,), 24) for name, size in
      {"wq": 4096, "wk": 512, "wv": 512, "wo": 2880}.items()),
    matrix(f"{LAYER}.attention.sinks", (64,), 24),
    matrix(f"{LAYER}.moe.experts.mlp1_weight", (32, 5760, 2880), 24),
    matrix(f"{LAYER}.moe.experts.mlp1_bias", (32, 5760), 24),
    matrix(f"{LAYER}.moe.experts.mlp2_weight", (32, 2880, 2880), 24),
    matrix(f"{LAYER}.moe.experts.mlp2_bias", (32, 2880), 24),
    matrix(f"{LAYER}.moe.router.gate.weight", (32, 2880), 24),
    matrix(f"{LAYER}.moe.router.gate.bias", (32,), 24),
    *norms(24, 2880),
    matrix("output.weight", (201088, 2880), 1),
]  # fmt: skip
MLA = {"kv_lora_rank": 512, "q_lora_rank": 0, "qk_nope_head_dim": 128, "qk_rope_head_dim": 64, "v_head_dim": 128}

#: Weights, configuration, sequence length, operations per token.
TORCHTITAN: dict[str, tuple[Sequence[Weight], dict[str, object], int, int]] = {
    "qwen3-0.6b": (QWEN3, {"n_heads": 16}, 4096, 5_461_377_024),
    "qwen3-30b-a3b": (QWEN3_MOE, {"moe_args": {"num_experts": 128, "top_k": 8}}, 2048, 23_083_044_864),
    "deepseek-debug": (DEEPSEEK_DEBUG, {**MLA, "moe_args": {"top_k": 3}}, 2048, 542_934_528),
    "gpt-oss-20b": (GPT_OSS, {"moe_args": {"top_k": 4}}, 2048, 24_065_762_688),
}


def inferred(weights: Sequence[Weight], config: dict[str, object], **options: Any) -> Transformer:
    return infer_dimensions(weights, "model", read_stated(config), **options).model


@pytest.mark.parametrize("name", TORCHTITAN)
def test_torchtitans_models_have_the_operations_that_its_code_counts(name: str) -> None:
    weights, config, seq_len, flops = TORCHTITAN[name]
    model = inferred(weights, config)
    assert per_token.torchtitan(model, seq_len) == flops
    assert total_parameters(model) == sum(weight.elements for weight in weights)


GPT2 = [
    table(50257, 768, "transformer.wte.weight"),
    table(1024, 768, "transformer.wpe.weight"),
    matrix("transformer.h.*.attn.c_attn.weight", (768, 2304), 12),
    matrix("transformer.h.*.attn.c_attn.bias", (2304,), 12),
    matrix("transformer.h.*.attn.c_proj.weight", (768, 768), 12),
    matrix("transformer.h.*.mlp.c_fc.weight", (768, 3072), 12),
    matrix("transformer.h.*.mlp.c_fc.bias", (3072,), 12),
    matrix("transformer.h.*.mlp.c_proj.weight", (3072, 768), 12),
    *(matrix(f"transformer.h.*.{name}", (768,), 12)
      for name in ("attn.c_proj.bias", "mlp.c_proj.bias", "ln_1.weight", "ln_1.bias", "ln_2.weight", "ln_2.bias")),
    *(matrix(f"transformer.ln_f.{name}", (768,), 1) for name in ("weight", "bias")),
]  # fmt: skip


def test_gpt2_of_transformers_has_six_times_its_parameters_and_its_attention() -> None:
    model = inferred(GPT2, {})
    assert total_parameters(model) == 124_439_808
    assert per_token.palm(model, 2048) == 6 * 124_439_808 + 12 * (12 * 768) * 2048


def test_experts_that_other_ranks_alone_hold_are_counted() -> None:
    local = [*DEEPSEEK_DEBUG[:9], *experts(5, 256, 256, 4)[:3], *DEEPSEEK_DEBUG[12:]]
    config: dict[str, object] = {**MLA, "top_k": 3}
    for more in ({}, {"num_experts": 8}):
        assert inferred(local, config | more) == inferred(DEEPSEEK_DEBUG, config)


def test_names_that_are_unknown_leave_the_attention_as_wide_as_the_hidden_size() -> None:
    weights = [
        table(256, 64, "tokens.weight"),
        matrix("blocks.*.qkv.weight", (192, 64), 3),
        matrix("blocks.*.projection.weight", (64, 64), 3),
        matrix("blocks.*.mlp.*.weight", (256, 64), 3),
        matrix("blocks.*.mlp.*.weight", (64, 256), 3),
    ]
    found = infer_dimensions(weights, "model")
    assert (found.is_width_known, found.model.query_dim, found.model.ffn) == (False, 64, 256)


@pytest.mark.parametrize(
    ("weights", "config", "said"),
    [
        (QWEN3_MOE, {}, "how many of them a token uses"),
        (QWEN3_MOE, {"num_experts": 128, "top_k": 200}, "how many of them a token uses"),
        # What transformers before 5 write into every configuration: from how many tokens a text is sampled.
        (QWEN3_MOE, {"top_k": 50, "transformers_version": "4.50.0"}, "how many of them a token uses"),
        (DEEPSEEK_DEBUG, {"top_k": 3}, "does not state the sizes of its heads"),
        (QWEN3, {"layer_types": ["full_attention", "linear_attention"]}, "cannot be counted: linear_attention"),
        ([*QWEN3, matrix("layers.*.linear_attn.A_log", (32,), 28)], {}, "cannot be counted: layers"),
        ([table(100, 128), *attention(2, 768, 768, 768), *mlp(2, 768, 3072)], {}, "not of the embedding table's width"),
    ],
)
def test_what_cannot_be_counted_is_said(weights: Sequence[Weight], config: dict[str, object], said: str) -> None:
    with pytest.raises(MissingInput, match=said):
        inferred(weights, config)


def test_configurations_state_their_dimensions_by_many_names() -> None:
    titan = {"dim": 256, "n_layers": 6, "n_heads": 16, "moe_args": {"num_experts": 8, "top_k": 3}, **MLA}
    found = read_stated(titan)
    assert (found.layers, found.hidden, found.heads, found.experts, found.top_k) == (6, 256, 16, 8, 3)
    assert found.latent is not None
    assert (found.latent.q_rank, found.latent.nope_dim, found.latent.value_dim) == (None, 128, 128)
    nested = read_stated({"n_layers": 6, "parts": {"num_hidden_layers": 2}})
    assert nested.layers == 6, "of two the outer one counts, whatever its name"
    of_text = read_stated({"vision_config": {"hidden_size": 1152}, "text_config": {"hidden_size": 2048}})
    assert of_text.hidden == 2048


@pytest.mark.parametrize(
    "value", ["", "many", "9" * 5000, None, True, -4, 0, 2.5, [16, 16, 8], {"of": "layers"}, float("nan")]
)
def test_a_field_of_another_type_counts_as_missing(value: object) -> None:
    names = ("n_layers", "dim", "n_heads", "num_experts", "top_k", "layer_types", *MLA)
    assert read_stated(dict.fromkeys(names, value)) == StatedDimensions()
