"""What any configuration of a model states of its dimensions, by the names that frameworks and scripts give them.

A value that is no whole number above zero counts as missing: a configuration may hold anything. Where objects hold
objects, the outermost one counts first; what describes images or sound is no part of the decoder.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from perfscope.models.transformer import Latent
from perfscope.tables.model import StatedDimensions

LAYERS = ("num_hidden_layers", "n_layer", "num_layers", "n_layers", "depth")
HIDDEN = ("hidden_size", "n_embd", "d_model", "n_embed", "dim", "embed_dim", "hidden")
HEADS = ("num_attention_heads", "n_head", "num_heads", "n_heads", "heads")
EXPERTS = ("num_local_experts", "num_experts", "n_routed_experts", "num_moe_experts", "moe_num_experts", "n_experts")
_TOP_K = (
    "num_experts_per_tok", "num_experts_per_token", "experts_per_token", "moe_router_topk", "n_activated_experts",
    "moe_top_k", "moe_k", "top_k",
)  # fmt: skip
_HAS_ATTENTION = {"full_attention", "sliding_attention", "chunked_attention"}
_OTHER_PARTS = ("vision", "visual", "image", "audio", "speech")


def read_stated(config: Mapping[str, object]) -> StatedDimensions:
    """Read what a configuration states."""
    parts = list(_parts(config))
    lists = (kinds for part in parts if isinstance(kinds := part.get("layer_types"), list))
    kinds = [kind for kind in next(lists, []) if isinstance(kind, str)]
    return StatedDimensions(
        layers=_find(parts, LAYERS),
        hidden=_find(parts, HIDDEN),
        heads=_find(parts, HEADS),
        experts=_find(parts, EXPERTS),
        top_k=_find(parts, _TOP_K),
        latent=_latent(parts),
        other_layers=tuple(sorted(set(kinds) - _HAS_ATTENTION)),
    )


def _parts(config: Mapping[str, object]) -> Iterator[Mapping[str, object]]:
    """A configuration and those inside it, the outer ones first."""
    waiting = [config]
    while waiting:
        part = waiting.pop(0)
        # In the configurations of transformers it says from how many tokens a text is sampled.
        yield {name: value for name, value in part.items() if name != "top_k" or "transformers_version" not in part}
        waiting += [
            value
            for name, value in part.items()
            if isinstance(value, Mapping) and not any(kind in name for kind in _OTHER_PARTS)
        ]


def _find(parts: Sequence[Mapping[str, object]], names: Sequence[str]) -> int | None:
    counts = (_count(part.get(name)) for part in parts for name in names)
    return next((count for count in counts if count), None)


def _count(value: object) -> int | None:
    if isinstance(value, float) and value.is_integer():
        value = int(value)
    return value if isinstance(value, int) and not isinstance(value, bool) and value > 0 else None


def _latent(parts: Sequence[Mapping[str, object]]) -> Latent | None:
    rank = _find(parts, ("kv_lora_rank",))
    nope = _find(parts, ("qk_nope_head_dim", "qk_head_dim"))
    rope = _find(parts, ("qk_rope_head_dim", "qk_pos_emb_head_dim"))
    value = _find(parts, ("v_head_dim",))
    if rank is None or nope is None or rope is None or value is None:
        return None
    return Latent(q_rank=_find(parts, ("q_lora_rank",)), kv_rank=rank, nope_dim=nope, rope_dim=rope, value_dim=value)
