"""A model from a file or from typed dimensions, and whether they and a size agree."""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

from perfscope.commands.options.model_choice import Typed
from perfscope.errors import UsageError
from perfscope.models.parameter_counts import total_parameters
from perfscope.models.transformer import (
    GATED_MATRICES,
    PLAIN_MATRICES,
    Experts,
    ModelDescription,
    Transformer,
    require_consistent,
)
from perfscope.units import format_parameters

#: A size is written with one or two figures, so a model within this share of it is that size.
_SIZE_TOLERANCE = 0.05
_GIBI_TOLERANCE = 0.015
_GIBI = 2**30 / 10**9


class Dimensions(NamedTuple):
    """The dimensions that were typed; absent where they were not."""

    layers: int | None = None
    hidden: int | None = None
    heads: int | None = None
    kv_heads: int | None = None
    head_dim: int | None = None
    ffn: int | None = None
    vocab: int | None = None
    padded_vocab: int | None = None
    gated: bool | None = None
    tied: bool | None = None
    experts: int | None = None
    top_k: int | None = None
    expert_ffn: int | None = None
    shared_ffn: int | None = None
    dense_layers: int | None = None
    mtp_layers: int | None = None

    @property
    def typed(self) -> dict[str, int | bool]:
        """What was typed, by name."""
        return {name: value for name, value in self._asdict().items() if value is not None}


def given(typed: Typed) -> Dimensions:
    """The dimensions that were typed, by name."""
    return Dimensions(**typed)  # type: ignore[arg-type]  # the command passes them by these names


def read_model(path: Path) -> ModelDescription:
    """Read the dimensions of a model from a ``config.json`` or a Megatron log.

    Raises:
        UsageError: The file does not exist, or does not tell the dimensions.
    """
    from perfscope.sources.models.huggingface import is_config_file, read_config

    if not path.exists():
        raise UsageError(f"{path} does not exist")
    if is_config_file(path):
        return read_config(path)
    if path.is_dir():
        raise UsageError(f"{path} holds no config.json")
    from perfscope.sources.joblog.megatron_log import read_megatron_log

    known = read_megatron_log(path).model
    if known is None:
        raise UsageError(f"{path} prints no Megatron arguments, so it does not tell the dimensions of the model")
    return known


def agreeing(known: ModelDescription, dimensions: Dimensions) -> ModelDescription:
    """Check typed dimensions against a model that has its own, and add what a framework adds."""
    model = known.transformer
    experts = model.experts
    own: dict[str, int | bool | None] = {
        "layers": model.layers,
        "hidden": model.hidden,
        "heads": model.heads,
        "kv_heads": model.kv_heads,
        "head_dim": model.head_dim,
        "ffn": model.ffn,
        "vocab": model.vocabulary,
        "gated": model.mlp_matrices == GATED_MATRICES,
        "tied": model.tied,
        "experts": experts.routed if experts else None,
        "top_k": experts.active if experts else None,
        "expert_ffn": experts.ffn if experts else None,
        "shared_ffn": experts.shared_ffn if experts else None,
        "dense_layers": model.layers - model.expert_layers if experts else None,
    }
    for name, value in dimensions.typed.items():
        if name in own and own[name] != value:
            raise UsageError(
                f"--{name.replace('_', '-')} {value} contradicts {model.name}, which has {own[name] or 'none'}",
                hint="give either the model or its dimensions",
            )
    return known._replace(
        transformer=require_consistent(
            model._replace(
                padded_vocabulary=dimensions.padded_vocab or model.padded_vocabulary,
                mtp_layers=model.mtp_layers if dimensions.mtp_layers is None else dimensions.mtp_layers,
            )
        )
    )


def from_dimensions(given: Dimensions, seq_len: int) -> ModelDescription:
    """Build a model from typed dimensions.

    Without a gate it is a GPT: biases, LayerNorm, learned positions, tied embeddings. With a gate it is a Llama: no
    biases, RMSNorm, rotary positions, untied embeddings.

    Raises:
        UsageError: A dimension is missing, not positive, or contradicts another.
    """
    if given.layers is None or given.hidden is None or given.vocab is None:
        missing = [f"--{name}" for name in ("layers", "hidden", "vocab") if getattr(given, name) is None]
        raise UsageError(f"{' and '.join(missing)} of the model missing: its operations depend on it")
    for name, value in given.typed.items():
        if value < (0 if name in ("shared_ffn", "dense_layers", "mtp_layers") else 1) and not isinstance(value, bool):
            raise UsageError(f"--{name.replace('_', '-')} must be at least 1, not {value}")
    notes: list[str] = []
    heads, head_dim = _heads(given, given.hidden, notes)
    gated = bool(given.gated)
    kv_heads = given.kv_heads or heads
    ffn = given.ffn or 4 * given.hidden
    biases = 0 if gated else heads * head_dim + 2 * kv_heads * head_dim + given.hidden + ffn + given.hidden
    norm = given.hidden if gated else 2 * given.hidden
    model = Transformer(
        name="the model",
        layers=given.layers,
        hidden=given.hidden,
        heads=heads,
        kv_heads=kv_heads,
        head_dim=head_dim,
        ffn=ffn,
        mlp_matrices=GATED_MATRICES if gated else PLAIN_MATRICES,
        vocabulary=given.vocab,
        tied=not gated if given.tied is None else given.tied,
        positions=0 if gated else seq_len,
        layer_vectors=2 * norm + biases,
        other_vectors=norm,
        experts=_experts(given, ffn),
        mtp_layers=given.mtp_layers or 0,
        padded_vocabulary=given.padded_vocab,
    )
    return ModelDescription(require_consistent(model), "the dimensions given", tuple(notes))


def _heads(given: Dimensions, hidden: int, notes: list[str]) -> tuple[int, int]:
    if given.heads is None:
        if given.kv_heads is not None or given.head_dim is not None:
            raise UsageError("--heads is missing beside --kv-heads or --head-dim")
        notes.append("--heads is not given: the operations of multi-head attention do not depend on it")
        heads = hidden // 64 if hidden % 64 == 0 else 1
        return heads, hidden // heads
    if given.head_dim is not None:
        return given.heads, given.head_dim
    if hidden % given.heads:
        raise UsageError(f"a hidden size of {hidden} does not divide into {given.heads} heads")
    return given.heads, hidden // given.heads


def _experts(given: Dimensions, ffn: int) -> Experts | None:
    if given.experts is None:
        for name in ("top_k", "expert_ffn", "shared_ffn", "dense_layers"):
            if getattr(given, name) is not None:
                raise UsageError(f"--{name.replace('_', '-')} is given without --experts")
        return None
    if given.top_k is None:
        raise UsageError("--top-k is missing: how many of the experts a token visits decides the operations")
    assert given.layers is not None
    return Experts(
        routed=given.experts,
        active=given.top_k,
        ffn=given.expert_ffn or ffn,
        shared_ffn=given.shared_ffn or 0,
        layers=given.layers - (given.dense_layers or 0),
    )


def check_size(parameters: int, known: ModelDescription) -> None:
    """Check a size that was typed against the exact number of parameters.

    Raises:
        UsageError: They are more than the rounding of a size apart.
    """
    exact = total_parameters(known.transformer)
    if abs(parameters / exact - 1) <= _SIZE_TOLERANCE:
        return
    problem = (
        f"a size of {format_parameters(parameters)} contradicts {known.transformer.name}, "
        f"which has {format_parameters(exact)} parameters"
    )
    if abs(parameters * _GIBI / exact - 1) <= _GIBI_TOLERANCE:
        raise UsageError(
            problem,
            hint=f"{format_parameters(parameters)} counted in G of 2**30 is "
            f"{format_parameters(int(parameters * _GIBI))} in B of 10**9: was the size computed in the wrong unit?",
        )
    raise UsageError(problem, hint="give either the size or the model")
