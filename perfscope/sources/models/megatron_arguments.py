"""The model that Megatron's arguments describe, from a training log or from a run's record."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path

from perfscope.errors import UsageError
from perfscope.models.transformer import (
    GATED_MATRICES,
    PLAIN_MATRICES,
    Experts,
    Latent,
    Transformer,
    require_consistent,
)


def model_from_arguments(
    arguments: Mapping[str, str], vocabulary: tuple[int, int] | None, origin: str
) -> Transformer | None:
    """The model that printed arguments describe; None where they lack one of its dimensions.

    ``vocabulary`` are tokens and padded rows where known from elsewhere. Raises UsageError where arguments contradict.
    """
    numbers = {name: int(value) for name, value in arguments.items() if value.isdigit()}
    enabled = {name for name, value in arguments.items() if value == "True"}
    layers, hidden, heads = (numbers.get(name) for name in ("num_layers", "hidden_size", "num_attention_heads"))
    padded = vocabulary[1] if vocabulary else numbers.get("padded_vocab_size") or numbers.get("vocab_size")
    if not (layers and hidden and heads and padded):
        return None
    tokens = vocabulary[0] if vocabulary else numbers.get("vocab_size") or padded
    gated = "swiglu" in enabled or arguments.get("glu_activation", "None") != "None"
    rms = arguments.get("normalization") == "RMSNorm"
    kv_heads = (numbers.get("num_query_groups") or heads) if "group_query_attention" in enabled else heads
    head_dim = numbers.get("kv_channels") or hidden // heads
    ffn = numbers.get("ffn_hidden_size") or 4 * hidden
    experts = _experts(arguments, numbers, layers, ffn, origin)
    norm = hidden if rms else 2 * hidden
    mlp_inner = ffn * (2 if gated else 1)
    biases = (heads + 2 * kv_heads) * head_dim + 2 * hidden + mlp_inner
    return require_consistent(
        Transformer(
            name=f"the model of {Path(origin).name}",
            layers=layers,
            hidden=hidden,
            heads=heads,
            kv_heads=kv_heads,
            head_dim=head_dim,
            ffn=ffn,
            mlp_matrices=GATED_MATRICES if gated else PLAIN_MATRICES,
            vocabulary=tokens,
            padded_vocabulary=padded,
            tied="untie_embeddings_and_output_weights" not in enabled,
            positions=_positions(arguments, numbers),
            layer_vectors=2 * norm + (0 if arguments.get("add_bias_linear") == "False" else biases),
            other_vectors=norm,
            latent=_latent(numbers, origin) if "multi_latent_attention" in enabled else None,
            experts=experts,
            mtp_layers=numbers.get("mtp_num_layers", 0),
        )
    )


def _positions(arguments: Mapping[str, str], numbers: Mapping[str, int]) -> int:
    learned = arguments.get("position_embedding_type", "learned_absolute") in (
        "learned_absolute",
        "PositionEmbeddingType.absolute",
    )
    return numbers.get("max_position_embeddings", 0) if learned else 0


def _latent(numbers: Mapping[str, int], origin: str) -> Latent:
    for name in ("kv_lora_rank", "qk_head_dim", "qk_pos_emb_head_dim", "v_head_dim"):
        if name not in numbers:
            raise UsageError(f"{origin}: multi_latent_attention is printed but not {name}")
    return Latent(
        q_rank=numbers.get("q_lora_rank"),
        kv_rank=numbers["kv_lora_rank"],
        nope_dim=numbers["qk_head_dim"],
        rope_dim=numbers["qk_pos_emb_head_dim"],
        value_dim=numbers["v_head_dim"],
    )


def _experts(
    arguments: Mapping[str, str], numbers: Mapping[str, int], layers: int, ffn: int, origin: str
) -> Experts | None:
    count = numbers.get("num_experts")
    if not count:
        return None
    top_k = numbers.get("moe_router_topk")
    if top_k is None:
        raise UsageError(f"{origin}: {count} experts are printed but not moe_router_topk, the experts per token")
    return Experts(
        routed=count,
        active=top_k,
        ffn=numbers.get("moe_ffn_hidden_size") or ffn,
        shared_ffn=numbers.get("moe_shared_expert_intermediate_size") or 0,
        layers=_expert_layers(arguments.get("moe_layer_freq", "1"), layers, origin),
    )


def _expert_layers(frequency: str, layers: int, origin: str) -> int:
    if frequency.isdigit() and int(frequency):
        return len(range(0, layers, int(frequency)))
    pattern = [int(bit) for bit in re.findall(r"[01]", frequency)]
    if len(pattern) != layers:
        raise UsageError(f"{origin}: moe_layer_freq {frequency} does not describe {layers} layers")
    return sum(pattern)
