"""A Hugging Face ``config.json`` as a Transformer.

Biases, norms and the shape of the MLP are written in the modelling code and not in the file. ``families.toml`` has
them, so that counts are those of the model that ``transformers`` builds. Another architecture is refused, and so is an
unsupported part: a wrong guess about the MLP alone would change the FLOPs by a fifth.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from functools import cache, partial
from pathlib import Path
from types import MappingProxyType
from typing import Any, NamedTuple, TypeAlias

from perfscope.errors import SourceError, UsageError
from perfscope.files import read_regular
from perfscope.models.data_files import read_data
from perfscope.models.parameter_counts import joining_parameters
from perfscope.models.transformer import (
    GATED_MATRICES,
    PLAIN_MATRICES,
    Experts,
    Latent,
    Mixer,
    Mixing,
    ModelDescription,
    Transformer,
    require_consistent,
)
from perfscope.sources.models.config_fields import EXPERTS, HEADS, HIDDEN, LAYERS
from perfscope.sources.models.layer_kinds import (
    ALONE,
    LETTERS,
    Compression,
    Recurrence,
    alone,
    compressed,
    gated_delta,
    mamba,
    windowed,
    with_kinds,
)

#: JSON whose values are checked where they are read; ``to_transformer`` reports a value of the wrong type.
Config: TypeAlias = Mapping[str, Any]

_KV_HEADS = ("num_key_value_heads", "num_kv_heads")
_FFN = ("intermediate_size", "n_inner", "ffn_dim", "ffn_hidden_size")
_CONTEXT = ("max_position_embeddings", "n_positions", "n_ctx", "max_seq_len", "seq_length")
_TOP_K = ("num_experts_per_tok", "experts_per_token")
_MOST_LAYERS = 10_000
_MAMBA = ("mamba_num_heads", "mamba_head_dim", "n_groups", "ssm_state_size", "conv_kernel")
_DELTA = (
    "linear_num_value_heads", "linear_value_head_dim", "linear_num_key_heads", "linear_key_head_dim",
    "linear_conv_kernel_dim",
)  # fmt: skip
#: Other names of kinds of layers.
_KINDS = {
    "attention": "full_attention", "global": "full_attention", "local": "sliding_attention",
    "mamba": "linear_attention",
}  # fmt: skip
#: DeepSeek-V4's kinds by how many tokens share a key, as ``compress_ratios`` names them.
_COMPRESSED = {0: "sliding_attention", 4: "compressed_sparse_attention", 128: "heavily_compressed_attention"}
_OTHER_PARTS = ("vision_config", "audio_config", "speech_config", "text_config", "encoder", "decoder")
_LATENT = ("deepseek_v2", "deepseek_v3", "kimi_k2")
_PREDICTION_MODULES = ("num_nextn_predict_layers", "num_mtp_modules")
#: Parts that change a layer, and the architectures in which they are known.
_KNOWN_IN: Mapping[str, tuple[str, ...]] = {
    "qk_layernorm": (), "parallel_layers": (), "kv_lora_rank": _LATENT, "index_topk": ("deepseek_v4",),
}  # fmt: skip
_DEEPSPEED_KEYS = ("train_batch_size", "train_micro_batch_size_per_gpu", "zero_optimization")


#: A fixed property, or the config key that states it and the default of that key.
Flag = bool | tuple[str, bool]


class Family(NamedTuple):
    """What the config.json of an architecture does not state.

    ``norm_vectors`` is 2 where norms have a bias, ``norms`` counts those of a layer. ``tied`` and ``head_dim`` are
    where the file does not state them. ``positions`` are extra rows of a learned position table. ``qk_norm`` is of one
    ``head``, or ``full`` over all heads, where ``has_qk_norm``. ``kinds`` are those of layers beside full attention;
    without ``layer_types`` all layers but each ``full_every``-th have the first of them. ``defaults`` are keys that the
    published files leave out.
    """

    gated: bool = True
    norm_vectors: int = 1
    norms: int = 2
    qkv_bias: Flag = False
    out_bias: Flag = False
    mlp_bias: Flag = False
    head_bias: Flag = False
    tied: bool = False
    positions: int | None = None
    qk_norm: str = ""
    has_qk_norm: Flag = True
    mixture: bool = False
    other_norms: int = 1
    head_dim: int | None = None
    kinds: tuple[str, ...] = ("sliding_attention",)
    full_every: int = 0
    is_swiglu: bool = True
    defaults: Mapping[str, int] = MappingProxyType({})


@cache
def families() -> Mapping[str, Family]:
    """Every architecture that is known, by its ``model_type``, from ``families.toml``."""
    found = {}
    for name, entry in read_data("families").items():
        stated: Config = {key: tuple(value) if isinstance(value, list) else value for key, value in entry.items()}
        found[name] = Family(**stated)
    return found


def is_config_file(path: Path) -> bool:
    """Whether a path is a ``config.json`` or a folder that holds one."""
    return path.suffix == ".json" or (path.is_dir() and (path / "config.json").is_file())


def read_config(path: Path) -> ModelDescription:
    """Read a ``config.json``, or the one in a folder.

    Raises SourceError where there is no file, UsageError where it is no config of a known architecture.
    """
    file = path / "config.json" if path.is_dir() else path
    try:
        config = json.loads(read_regular(file))
    except OSError as error:
        raise SourceError(file, f"cannot be read: {error.strerror}") from None
    except (ValueError, RecursionError):
        raise UsageError(f"{file} is not JSON") from None
    if not isinstance(config, dict):
        raise UsageError(f"{file} is not a JSON object")
    if "model_type" not in config and any(key in config for key in _DEEPSPEED_KEYS):
        raise UsageError(
            f"{file} is a DeepSpeed config, which contains no dimensions of a model",
            hint="give --model or --size, and --zero, --micro-batch and --dtype for what it sets",
        )
    model, text = to_transformer(config, str(file)), text_config(config)
    is_alone = text is config and not any(isinstance(config.get(key), Mapping) for key in _OTHER_PARTS)
    notes = () if is_alone else (f"the text model of {config.get('model_type')!r} alone is counted",)
    return ModelDescription(model, f"{file} ({text['model_type']})", notes, mtp_layers=prediction_modules(text))


def text_config(config: Config) -> Config:
    """The part that describes the text model, where one of a known kind is within a model of images or sound.

    Whether embeddings are tied can be stated beside it.
    """
    text = config.get("text_config")
    if not (isinstance(text, Mapping) and text.get("model_type") in families()):
        return config
    return {key: config[key] for key in ("tie_word_embeddings",) if key in config} | dict(text)


def prediction_modules(config: Config) -> int:
    """The modules for multi-token prediction that a config states."""
    return _find_count(config, _PREDICTION_MODULES) or 0


def to_transformer(config: Config, name: str) -> Transformer:
    """Build a Transformer from a config's keys, without its prediction modules, as published sizes are.

    Raises UsageError where its architecture or a part of it is not known, or its dimensions contradict each other.
    """
    try:
        return _to_transformer(text_config(config), name)
    except (TypeError, ValueError, AttributeError, ZeroDivisionError):
        raise UsageError(
            f"{name}: a value has another type than the key has in {config.get('model_type')!r}",
            hint="is it the config.json of the model, as transformers writes it?",
        ) from None


def _to_transformer(config: Config, name: str) -> Transformer:
    family = _family(config, name)
    for key in _PREDICTION_MODULES:
        _optional_count(config, key, name)
    config = {**family.defaults, **config}
    _refuse_unknown_parts(config, family, name)
    kinds = _kinds(config, family, name)
    hidden = _require_count(config, HIDDEN, name, "hidden size")
    heads = _require_count(config, HEADS, name, "number of attention heads")
    latent = _latent(config, name)
    experts = _experts(config, family, kinds, name)
    model = Transformer(
        name=name,
        layers=len(kinds),
        hidden=hidden,
        heads=heads,
        kv_heads=heads if latent else _find_count(config, _KV_HEADS) or heads,
        head_dim=latent.nope_dim + latent.rope_dim if latent else _head_dim(config, family, (hidden, heads), name),
        ffn=_ffn(config, family, hidden, name),
        mlp_matrices=GATED_MATRICES if family.gated else PLAIN_MATRICES,
        vocabulary=_require_count(config, ("vocab_size",), name, "vocabulary"),
        tied=bool(config.get("tie_word_embeddings", family.tied)),
        positions=_positions(config, family, name),
        latent=latent,
        experts=experts,
        context=_find_count(config, _CONTEXT),
        is_swiglu=family.is_swiglu,
    )
    model = _with_vectors(require_consistent(model), config, family)
    makers = _makers(config, name)
    return require_consistent(with_kinds(model, Counter(kinds), makers))


def _family(config: Config, name: str) -> Family:
    model_type = config.get("model_type")
    if isinstance(model_type, str) and model_type in families():
        return families()[model_type]
    parts = [key for key in _OTHER_PARTS if isinstance(config.get(key), Mapping)]
    if parts:
        problem = f"{name}: {', '.join(parts)} of {model_type!r} is not supported, only plain decoders are"
    elif model_type is None:
        problem = f"{name}: it has no model_type, so what its layers are made of is not known"
    else:
        problem = f"{name}: what a layer of the architecture {model_type!r} is made of is not known"
    raise UsageError(
        problem,
        hint=f"known: {', '.join(sorted(families()))}; or --model layers=32,hidden=4096,heads=32,vocab=32000",
    )


def _refuse_unknown_parts(config: Config, family: Family, name: str) -> None:
    kind = config["model_type"]
    unknown = [key for key, known in _KNOWN_IN.items() if config.get(key) and kind not in known]
    if config.get("use_qk_norm") and not family.qk_norm and isinstance(family.has_qk_norm, bool):
        unknown.append("use_qk_norm")
    if unknown:
        raise UsageError(f"{name}: {unknown[0]} in {kind!r} is not known")
    if not family.mixture and (_find_count(config, EXPERTS) or 0) > 1:
        raise UsageError(f"{name}: experts in {kind!r}, which has a dense MLP elsewhere, are not known")
    projected = config.get("word_embed_proj_dim", config.get("hidden_size"))
    if projected != config.get("hidden_size"):
        raise UsageError(f"{name}: word_embed_proj_dim in {kind!r} is not known")


def _find_count(config: Config, keys: Sequence[str]) -> int | None:
    for key in keys:
        value = config.get(key)
        if isinstance(value, int) and not isinstance(value, bool):
            return value
    return None


def _optional_count(config: Config, key: str, name: str) -> int | None:
    value = config.get(key)
    if value is not None and (not isinstance(value, int) or isinstance(value, bool) or value < 0):
        raise UsageError(f"{name}: {key} {value!r} is no count")
    return value


def _require_count(config: Config, keys: Sequence[str], name: str, meaning: str) -> int:
    value = _find_count(config, keys)
    if value is None:
        raise UsageError(f"{name}: the {meaning} ({keys[0]}) is missing")
    return value


def _positive_count(config: Config, key: str, name: str) -> int:
    value = _require_count(config, (key,), name, f"value of {key}")
    if value < 1:
        raise UsageError(f"{name}: {key} must be at least 1, not {value}")
    return value


def _flag(config: Config, flag: Flag) -> bool:
    if isinstance(flag, bool):
        return flag
    key, default = flag
    return bool(config.get(key, default))


def _head_dim(config: Config, family: Family, sizes: tuple[int, int], name: str) -> int:
    head_dim = config.get("head_dim", family.head_dim)
    if isinstance(head_dim, int):
        return head_dim
    hidden, heads = sizes
    if heads < 1 or hidden % heads:
        raise UsageError(f"{name}: a hidden size of {hidden} does not divide into {heads} heads")
    return hidden // heads


def _ffn(config: Config, family: Family, hidden: int, name: str) -> int:
    ffn = _find_count(config, ("intermediate_size_mlp", *_FFN))
    if ffn is not None:
        return ffn
    if family.gated:
        if family.mixture and config.get("moe_intermediate_size"):
            return int(config["moe_intermediate_size"])
        raise UsageError(f"{name}: the hidden size of its MLP ({_FFN[0]}) is missing")
    return 4 * hidden


def _positions(config: Config, family: Family, name: str) -> int:
    if family.positions is None:
        return 0
    return _require_count(config, _CONTEXT, name, "number of positions") + family.positions


def _kinds(config: Config, family: Family, name: str) -> list[str]:
    """The kind of each layer, by the names of ``layer_types``."""
    stated = config.get("layers_block_type") or config.get("layer_types") or config.get("attention_layers")
    pattern, ratios = config.get("hybrid_override_pattern"), config.get("compress_ratios")
    layers = _find_count(config, LAYERS)
    if stated is None and pattern is not None:
        stated = [LETTERS.get(letter, letter) for letter in str(pattern)]
    elif stated is None and ratios is not None:
        stated = [_COMPRESSED.get(ratio, str(ratio)) for ratio in ratios][:layers]
    if stated is not None:
        kinds = [_KINDS.get(kind, kind) for kind in stated]
        layers = len(kinds) if layers is None else layers
    elif config.get("no_rope_layers"):
        kinds = [family.kinds[0] if is_rope else "full_attention" for is_rope in config["no_rope_layers"]]
    else:
        layers = _require_count(config, LAYERS, name, "number of layers")
        if not 0 < layers <= _MOST_LAYERS:
            raise UsageError(f"{name}: {layers} layers are not possible")
        if len(family.kinds) > 1:
            raise UsageError(f"{name}: the kinds of its layers (layer_types) are missing")
        every = config.get("full_attention_interval") or config.get("sliding_window_pattern") or family.full_every
        every = len(every) if every == "LLLG" else every  # EXAONE 4
        first = config.get("max_window_layers") or 0 if config.get("use_sliding_window") else 0
        has_window = family.kinds != ("sliding_attention",) or _has_window(config)
        kinds = [
            family.kinds[0]
            if has_window and layer >= first and not (every and (layer + 1) % every == 0)
            else "full_attention"
            for layer in range(layers)
        ]
    unknown = {str(kind) for kind in kinds} - {"full_attention", *family.kinds}
    if unknown:
        known = config.get("model_type")
        raise UsageError(f"{name}: layers of type {', '.join(sorted(unknown))} in {known!r} are not known")
    if len(kinds) != layers:
        raise UsageError(f"{name}: it names the kinds of {len(kinds)} layers and has {layers}")
    # A model of this kind may name sliding layers and set no window.
    return (
        kinds if _has_window(config) else ["full_attention" if kind == "sliding_attention" else kind for kind in kinds]
    )


def _has_window(config: Config) -> bool:
    return bool(config.get("sliding_window")) and config.get("use_sliding_window") is not False


def _makers(config: Config, name: str) -> dict[str, Callable[[Transformer, int], Mixer]]:
    """What makes the layers of each kind of this model."""

    def count(key: str) -> int:
        return _positive_count(config, key, name)

    def make_window(model: Transformer, layers: int) -> Mixer:
        window = count("sliding_window")
        if config["model_type"] == "deepseek_v4":
            return compressed(model, layers, Compression(0, window))
        return windowed(model, layers, window)

    def make_chunks(model: Transformer, layers: int) -> Mixer:
        return windowed(model, layers, count("attention_chunk_size"), Mixing.CHUNK)

    def make_recurrent(model: Transformer, layers: int) -> Mixer:
        is_mamba = config["model_type"] == "nemotron_h"
        heads, head_dim, groups, state, kernel = map(count, _MAMBA if is_mamba else _DELTA)
        sizes = Recurrence(heads, head_dim, groups, state, kernel, bool(config.get("use_conv_bias", True)))
        return mamba(model, layers, sizes) if is_mamba else gated_delta(model, layers, sizes)

    def make_compressed(model: Transformer, layers: int, ratio: int) -> Mixer:
        sizes = Compression(ratio, count("sliding_window"))
        if ratio == min(filter(None, _COMPRESSED)):
            indexer = (count(key) for key in ("index_topk", "index_n_heads", "index_head_dim", "q_lora_rank"))
            sizes = Compression(ratio, sizes.window, *indexer)
        return compressed(model, layers, sizes)

    return {
        "sliding_attention": make_window,
        "chunked_attention": make_chunks,
        "linear_attention": make_recurrent,
        **{kind: partial(make_compressed, ratio=ratio) for ratio, kind in _COMPRESSED.items() if ratio},
        **dict.fromkeys(ALONE, alone),
    }


def _latent(config: Config, name: str) -> Latent | None:
    if config["model_type"] not in _LATENT:
        return None
    return Latent(
        q_rank=_optional_count(config, "q_lora_rank", name),
        kv_rank=_require_count(config, ("kv_lora_rank",), name, "rank of keys and values"),
        nope_dim=_require_count(config, ("qk_nope_head_dim",), name, "query head without position"),
        rope_dim=_require_count(config, ("qk_rope_head_dim",), name, "rotary part of a head"),
        value_dim=_require_count(config, ("v_head_dim",), name, "value head"),
    )


def _experts(config: Config, family: Family, kinds: Sequence[str], name: str) -> Experts | None:
    count = _find_count(config, EXPERTS)
    is_hybrid = set(ALONE) <= set(family.kinds)
    if not family.mixture or not count or (is_hybrid and "moe" not in kinds):
        return None
    layers = kinds.count("moe") if is_hybrid else _expert_layers(config, len(kinds))
    ffn = _find_count(config, ("moe_intermediate_size", *_FFN))
    if ffn is None:
        raise UsageError(f"{name}: the hidden size of an expert (moe_intermediate_size) is missing")
    number = _optional_count(config, "n_shared_experts", name) or (1 if config["model_type"] == "llama4_text" else 0)
    whole = _optional_count(config, "shared_expert_intermediate_size", name)
    whole = whole or _optional_count(config, "moe_shared_expert_intermediate_size", name)
    shared = whole or number * ffn
    hidden = _require_count(config, HIDDEN, name, "hidden size")
    kind = config["model_type"]
    return Experts(
        routed=count,
        active=_require_count(config, _TOP_K, name, "experts per token"),
        ffn=ffn,
        shared_ffn=shared,
        layers=layers,
        vectors=2 * ffn + hidden if kind == "gpt_oss" else 0,
        layer_vectors={"qwen2_moe": hidden, "qwen3_next": hidden, "gpt_oss": count}.get(kind, 0),
        latent=_optional_count(config, "moe_latent_size", name) or None,
    )


def _expert_layers(config: Config, layers: int) -> int:
    """The number of layers with experts: all but the first few (DeepSeek), or every n-th but some (Qwen)."""
    named = config.get("moe_layers")  # Llama 4
    if named:
        return len(set(named) & set(range(layers)))
    first = config.get("first_k_dense_replace") or 0
    step = (
        config.get("interleave_moe_layer_step")
        or config.get("decoder_sparse_step")
        or config.get("moe_layer_freq")
        or 1
    )
    dense = set(config.get("mlp_only_layers") or ())
    offset = 1 if config.get("decoder_sparse_step") or config.get("interleave_moe_layer_step") else 0
    return sum(1 for layer in range(layers) if layer >= first and layer not in dense and (layer + offset) % step == 0)


def _with_vectors(model: Transformer, config: Config, family: Family) -> Transformer:
    kind = config["model_type"]
    kv_dim = model.kv_heads * model.head_dim
    vectors = family.norms * family.norm_vectors * model.hidden
    if model.latent:
        vectors += (model.latent.q_rank or 0) + model.latent.kv_rank
    if _flag(config, family.qkv_bias):
        vectors += model.query_dim + 2 * kv_dim
    if _flag(config, family.out_bias):
        vectors += model.hidden
    if _flag(config, family.mlp_bias):
        vectors += (model.mlp_matrices - 1) * model.ffn + model.hidden
    if family.qk_norm and _flag(config, family.has_qk_norm):
        vectors += 2 * model.head_dim if family.qk_norm == "head" else model.query_dim + kv_dim
    if kind in ("gpt_oss", "deepseek_v4"):
        vectors += model.heads  # attention sinks
    outside = family.other_norms * family.norm_vectors * model.hidden
    if kind == "opt" and not config.get("do_layer_norm_before", True):
        outside = 0
    if _flag(config, family.head_bias):
        outside += model.vocabulary
    projections = None
    if kind == "qwen3_next":  # queries have gates
        projections = model.hidden * (3 * model.query_dim + 2 * kv_dim)
    if kind == "deepseek_v4":
        rank, out_rank, groups, streams = (
            _positive_count(config, key, model.name) for key in ("q_lora_rank", "o_lora_rank", "o_groups", "hc_mult")
        )
        projections = rank * (model.hidden + model.query_dim) + model.hidden * kv_dim
        projections += out_rank * (model.query_dim + groups * model.hidden)
        mixes = streams * (streams + 2)  # two hyper-connections a layer, and one at the end
        vectors += rank + kv_dim + 2 * (mixes * (streams * model.hidden + 1) + 3)
        model = model._replace(streams=streams)
        outside += joining_parameters(model)
    return model._replace(layer_vectors=vectors, other_vectors=outside, projections=projections)
