"""What the ``config.json`` of an architecture does not state, one entry per architecture.

Biases, norms and the shape of the MLP are written in the modelling code and not in the file. The counts that follow
from an entry are those of the model that ``transformers`` builds from the same file.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

#: A fixed property, or the config key that states it and the default of that key.
Flag = bool | tuple[str, bool]


class Family(NamedTuple):
    """What the config.json of an architecture does not state.

    ``norm_vectors`` is 2 where norms have a bias, ``norms`` counts those of a layer. ``tied`` and ``head_dim`` are
    where the file does not state them. ``positions`` are extra rows of a learned position table. ``qk_norm`` is of one
    ``head``, or ``full`` over all heads.
    """

    gated: bool = True
    norm_vectors: int = 1
    norms: int = 2
    qkv_bias: Flag = False
    out_bias: Flag = False
    mlp_bias: Flag = False
    head_bias: bool = False
    tied: bool = False
    positions: int | None = None
    qk_norm: str = ""
    mixture: bool = False
    other_norms: int = 1
    head_dim: int | None = None


def _biases(key: str, *, default: bool) -> dict[str, Any]:
    return dict.fromkeys(("qkv_bias", "out_bias", "mlp_bias"), (key, default))


#: Flags that several architectures share.
_ATTENTION: dict[str, Any] = {"qkv_bias": ("attention_bias", False), "out_bias": ("attention_bias", False)}
_MLP_BIAS = ("mlp_bias", False)
_PLAIN: dict[str, Any] = {"gated": False, "norm_vectors": 2}
_GPT2 = Family(**_PLAIN, qkv_bias=True, out_bias=True, mlp_bias=True, tied=True, positions=0)
_LLAMA = Family(**_ATTENTION, mlp_bias=_MLP_BIAS)
_DEEPSEEK = Family(mixture=True)

FAMILIES: Mapping[str, Family] = {
    "gpt2": _GPT2,
    "gpt_neo": Family(**_PLAIN, out_bias=True, mlp_bias=True, tied=True, positions=0),
    "gpt_neox": Family(**_PLAIN, qkv_bias=("attention_bias", True), out_bias=("attention_bias", True), mlp_bias=True),
    "gptj": Family(**_PLAIN, norms=1, mlp_bias=True, head_bias=True),
    "opt": Family(
        **_PLAIN,
        **_biases("enable_bias", default=True),
        tied=True,
        positions=2,
    ),
    "bloom": Family(**_PLAIN, qkv_bias=True, out_bias=True, mlp_bias=True, tied=True, other_norms=2),
    "llama": _LLAMA,
    "mistral": Family(),
    "smollm3": Family(**_ATTENTION, mlp_bias=_MLP_BIAS, tied=True),
    "granite": _LLAMA,
    "phi": Family(**_PLAIN, norms=1, qkv_bias=True, out_bias=True, mlp_bias=True, head_bias=True),
    "phi3": Family(),
    "starcoder2": Family(**_PLAIN, **_biases("use_bias", default=True), tied=True),
    "nemotron": Family(**_PLAIN, **_ATTENTION, mlp_bias=_MLP_BIAS),
    "olmo": Family(norm_vectors=0, **_ATTENTION),
    "olmo2": Family(**_ATTENTION, qk_norm="full"),
    "cohere": Family(norms=1, **_ATTENTION, tied=True),
    "gemma": Family(**_ATTENTION, tied=True, head_dim=256),
    "gemma2": Family(norms=4, **_ATTENTION, tied=True, head_dim=256),
    "gemma3_text": Family(norms=4, **_ATTENTION, tied=True, qk_norm="head", head_dim=256),
    "qwen2": Family(qkv_bias=True),
    "qwen3": Family(**_ATTENTION, qk_norm="head", head_dim=128),
    "qwen2_moe": Family(qkv_bias=("qkv_bias", True), mixture=True),
    "qwen3_moe": Family(**_ATTENTION, qk_norm="head", mixture=True),
    "mixtral": Family(mixture=True),
    "arcee": Family(gated=False, **_ATTENTION, mlp_bias=_MLP_BIAS),
    "cohere2": Family(norms=1, **_ATTENTION, tied=True),
    "dots1": Family(**_ATTENTION, qk_norm="head", mixture=True),
    "ernie4_5": Family(
        **_biases("use_bias", default=False),
        tied=True,
        head_dim=128,
    ),
    "exaone4": Family(qk_norm="head"),
    "glm": Family(qkv_bias=("attention_bias", True), head_dim=128),
    "glm4": Family(norms=4, qkv_bias=("attention_bias", True), head_dim=128),
    "glm4_moe": Family(qkv_bias=("attention_bias", False), mixture=True),
    "granitemoe": Family(**_ATTENTION, mixture=True),
    "hunyuan_v1_dense": Family(**_ATTENTION, qk_norm="head"),
    "internlm3": Family(qkv_bias=("qkv_bias", False), out_bias=("bias", False), mlp_bias=("bias", False), head_dim=128),
    "minimax_m2": Family(qk_norm="full", mixture=True, head_dim=128),
    "ministral": Family(),
    "ministral3": Family(head_dim=128),
    "olmo3": Family(**_ATTENTION, qk_norm="full"),
    "phimoe": Family(norm_vectors=2, **_ATTENTION, mixture=True),
    "seed_oss": Family(
        qkv_bias=("attention_bias", True), out_bias=("attention_out_bias", False), mlp_bias=_MLP_BIAS, head_dim=128
    ),
    "olmoe": Family(**_ATTENTION, qk_norm="full", mixture=True),
    "gpt_oss": Family(qkv_bias=("attention_bias", True), out_bias=("attention_bias", True), mixture=True, head_dim=64),
    "deepseek_v2": _DEEPSEEK,
    "deepseek_v3": _DEEPSEEK,
    "kimi_k2": _DEEPSEEK,
}
