"""Which model a command is about: what was typed, what a name or a file says, and whether they agree."""

from __future__ import annotations

from dataclasses import dataclass, fields, replace
from pathlib import Path

from perfscope.errors import UsageError
from perfscope.transformer import (
    GATED_MATRICES,
    PLAIN_MATRICES,
    Experts,
    KnownModel,
    Transformer,
    active_parameters,
    total_parameters,
)
from perfscope.units import format_parameters, parse_parameters

#: A size is written with one or two figures, so a model within this share of it is that size.
_SIZE_TOLERANCE = 0.05
_GIBI_TOLERANCE = 0.015
_GIBI = 2**30 / 10**9


@dataclass(frozen=True, slots=True)
class Dimensions:
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
    def given(self) -> dict[str, int | bool]:
        """What was typed, by name."""
        return {field.name: value for field in fields(self) if (value := getattr(self, field.name)) is not None}


@dataclass(frozen=True, slots=True)
class Choice:
    """The model that a command is about.

    Attributes:
        parameters: The parameters that a token uses.
        known: The dimensions; absent where only a size was given.
        origin: Where they come from, in words.
        notes: What was assumed.
    """

    parameters: int
    known: KnownModel | None
    origin: str
    notes: tuple[str, ...] = ()

    @property
    def model(self) -> Transformer | None:
        """The dimensions; absent where only a size was given."""
        return self.known.model if self.known else None

    @property
    def stored_parameters(self) -> int:
        """All parameters, every expert counted."""
        return total_parameters(self.known.model) if self.known else self.parameters


def choose_model(
    size: str | None, model: str | None, dimensions: Dimensions, seq_len: int, logged: KnownModel | None = None
) -> Choice:
    """Find the model that was asked for.

    Args:
        size: The text of ``--size``.
        model: The text of ``--model``.
        dimensions: The dimensions that were typed.
        seq_len: Tokens in a sequence: the positions of a GPT that is given by its dimensions.
        logged: The model that a log describes, for where nothing was typed.

    Raises:
        UsageError: Nothing was asked for, it is not known, or what was given contradicts itself.
    """
    parameters = parse_parameters(size) if size else None
    known = _named(model) if model else None
    if known is None and model:
        stated = parse_parameters(model)
        if parameters not in (None, stated):
            raise UsageError(f"--size {size} contradicts --model {model}")
        parameters = stated
    if known is None and parameters is None:
        known = logged if logged and not _is_whole(dimensions) else None
    if known is not None:
        known = _agreeing(known, dimensions)
    elif dimensions.given:
        known = from_dimensions(dimensions, seq_len)
    if known is None:
        if parameters is None:
            raise UsageError(
                "which model? neither --size nor --model nor dimensions are given",
                hint="--size 52B, --model llama3-8b, --model path/to/config.json, or --layers, --hidden and --vocab",
            )
        return Choice(parameters, None, f"the size {size or model}")
    if parameters is not None:
        _check_size(parameters, known)
    return Choice(active_parameters(known.model), known, known.origin, known.notes)


def _is_whole(dimensions: Dimensions) -> bool:
    """Whether the typed dimensions make a model by themselves."""
    return None not in (dimensions.layers, dimensions.hidden, dimensions.vocab)


def _named(text: str) -> KnownModel | None:
    """A model by its name or file; absent where the text is a size."""
    from perfscope.sources.presets import find_preset, preset_names

    preset = find_preset(text)
    if preset is not None:
        return preset
    path = Path(text)
    if path.exists() or "/" in text or path.suffix in (".json", ".log", ".out", ".txt"):
        return read_model(path)
    try:
        parse_parameters(text)
    except UsageError:
        raise UsageError(
            f"the model {text!r} is no known name, no file and no size", hint=f"known: {', '.join(preset_names())}"
        ) from None
    return None


def read_model(path: Path) -> KnownModel:
    """Read the dimensions of a model from a ``config.json`` or a Megatron log.

    Raises:
        UsageError: The file does not exist, or does not tell the dimensions.
    """
    from perfscope.sources.model_config import is_config_file, read_config

    if not path.exists():
        raise UsageError(f"{path} does not exist")
    if is_config_file(path):
        return read_config(path)
    if path.is_dir():
        raise UsageError(f"{path} holds no config.json")
    from perfscope.sources.megatron_log import read_megatron_log

    known = read_megatron_log(path).model
    if known is None:
        raise UsageError(f"{path} prints no Megatron arguments, so it does not tell the dimensions of the model")
    return known


def _agreeing(known: KnownModel, dimensions: Dimensions) -> KnownModel:
    """Check typed dimensions against a model that has its own, and add what a framework adds."""
    model = known.model
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
        "experts": experts.count if experts else None,
        "top_k": experts.active if experts else None,
        "expert_ffn": experts.ffn if experts else None,
        "shared_ffn": experts.shared_ffn if experts else None,
        "dense_layers": model.layers - model.expert_layers if experts else None,
    }
    for name, value in dimensions.given.items():
        if name in own and own[name] != value:
            raise UsageError(
                f"--{name.replace('_', '-')} {value} contradicts {model.name}, which has {own[name] or 'none'}",
                hint="give either the model or its dimensions",
            )
    return replace(
        known,
        model=replace(
            model,
            padded_vocabulary=dimensions.padded_vocab or model.padded_vocabulary,
            mtp_layers=model.mtp_layers if dimensions.mtp_layers is None else dimensions.mtp_layers,
        ),
    )


def from_dimensions(given: Dimensions, seq_len: int) -> KnownModel:
    """Build a model from typed dimensions.

    Without a gate it is a GPT: biases, LayerNorm, learned positions, tied embeddings. With a gate it is a Llama: no
    biases, RMSNorm, rotary positions, untied embeddings.

    Raises:
        UsageError: A dimension is missing, not positive, or contradicts another.
    """
    if given.layers is None or given.hidden is None or given.vocab is None:
        missing = [f"--{name}" for name in ("layers", "hidden", "vocab") if getattr(given, name) is None]
        raise UsageError(f"{' and '.join(missing)} of the model missing: its operations depend on it")
    for name, value in given.given.items():
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
    return KnownModel(model, "the dimensions given", tuple(notes))


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
        count=given.experts,
        active=given.top_k,
        ffn=given.expert_ffn or ffn,
        shared_ffn=given.shared_ffn or 0,
        layers=given.layers - (given.dense_layers or 0),
    )


def _check_size(parameters: int, known: KnownModel) -> None:
    exact = total_parameters(known.model)
    if abs(parameters / exact - 1) <= _SIZE_TOLERANCE:
        return
    problem = (
        f"a size of {format_parameters(parameters)} contradicts {known.model.name}, "
        f"which has {format_parameters(exact)} parameters"
    )
    if abs(parameters * _GIBI / exact - 1) <= _GIBI_TOLERANCE:
        raise UsageError(
            problem,
            hint=f"{format_parameters(parameters)} counted in G of 2**30 is "
            f"{format_parameters(int(parameters * _GIBI))} in B of 10**9: was the size computed in the wrong unit?",
        )
    raise UsageError(problem, hint="give either the size or the model")
