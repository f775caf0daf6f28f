"""The model that Megatron's arguments describe, from a training log or from a run's record."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path

from perfscope.errors import UsageError
from perfscope.models.transformer import (
    GATED_MATRICES,
    PLAIN_MATRICES,
    Experts,
    Latent,
    Mixer,
    Transformer,
    require_consistent,
)
from perfscope.sources.models.layer_kinds import ALONE, LETTERS, Recurrence, alone, mamba, windowed, with_kinds

_PATTERNS = ("hybrid_layer_pattern", "hybrid_override_pattern")


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
    kinds = _kinds(arguments, layers, origin)
    model = require_consistent(
        Transformer(
            name=f"the model of {Path(origin).name}",
            layers=len(kinds),
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
            is_swiglu="swiglu" in enabled or not gated,
        )
    )
    if set(kinds) & set(ALONE):  # a hybrid: each layer has one norm
        model = model._replace(layer_vectors=norm, experts=experts and experts._replace(layers=kinds.count("moe")))
    return require_consistent(with_kinds(model, Counter(kinds), _makers(arguments, numbers)))


def _kinds(arguments: Mapping[str, str], layers: int, origin: str) -> list[str]:
    """The kind of each layer: of the hybrid's pattern, else which of them have the window."""
    pattern = next((text for key in _PATTERNS if (text := arguments.get(key, "None")) not in ("None", "")), None)
    if pattern is not None:
        letters = pattern.split("/")[0].replace("|", "")
        if unknown := set(letters) - set(LETTERS):
            raise UsageError(f"{origin}: layers {', '.join(sorted(unknown))} of the pattern {pattern} are not known")
        return [LETTERS[letter] for letter in letters]
    if not _window(arguments):
        return ["full_attention"] * layers
    frequency = arguments.get("window_attn_skip_freq", "None")
    if frequency.isdigit() and int(frequency):
        has_window = [(layer + 1) % int(frequency) != 0 for layer in range(layers)]
    else:
        has_window = [bit == "1" for bit in re.findall(r"[01]", frequency)] or [True] * layers
    if len(has_window) != layers:
        raise UsageError(f"{origin}: window_attn_skip_freq {frequency} does not describe {layers} layers")
    return ["sliding_attention" if windowed else "full_attention" for windowed in has_window]


def _window(arguments: Mapping[str, str]) -> int:
    """Tokens of the window: those before a token, and the token itself; -1 is no limit."""
    sizes = [int(size) for size in re.findall(r"-?\d+", arguments.get("window_size", ""))]
    return sum(sizes) + 1 if sizes and min(sizes) >= 0 else 0


def _makers(
    arguments: Mapping[str, str], numbers: Mapping[str, int]
) -> Mapping[str, Callable[[Transformer, int], Mixer]]:
    sizes = Recurrence(
        heads=numbers.get("mamba_num_heads") or 2 * numbers["hidden_size"] // numbers.get("mamba_head_dim", 64),
        head_dim=numbers.get("mamba_head_dim", 64),
        groups=numbers.get("mamba_num_groups", 8),
        state=numbers.get("mamba_state_dim", 128),
        kernel=4,
    )
    return {
        "sliding_attention": partial(windowed, window=_window(arguments)),
        LETTERS["M"]: partial(mamba, sizes=sizes),
        **dict.fromkeys(ALONE, alone),
    }


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
        latent=numbers.get("moe_latent_size"),
    )


def _expert_layers(frequency: str, layers: int, origin: str) -> int:
    if frequency.isdigit() and int(frequency):
        return len(range(0, layers, int(frequency)))
    pattern = [int(bit) for bit in re.findall(r"[01]", frequency)]
    if len(pattern) != layers:
        raise UsageError(f"{origin}: moe_layer_freq {frequency} does not describe {layers} layers")
    return sum(pattern)
