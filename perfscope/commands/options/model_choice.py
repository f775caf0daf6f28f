"""Which model a command is about: what was typed, what a name or a file says, and whether they agree."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple, TypeAlias

from perfscope.errors import UsageError
from perfscope.units import parse_parameters

if TYPE_CHECKING:
    from collections.abc import Mapping

    from perfscope.models.transformer import ModelDescription, Transformer


#: Dimensions as they were typed, None for those that were not; the names are those of ``model_building.Dimensions``.
Typed: TypeAlias = "Mapping[str, int | bool | None]"


class Choice(NamedTuple):
    """The model that a command is about.

    Attributes:
        parameters: The parameters that a token uses.
        stored_parameters: All parameters, every expert counted.
        model: The dimensions; absent where only a size was given.
        known: The dimensions with their origin; absent likewise.
        origin: Where they come from, in words.
        notes: What was assumed.
    """

    parameters: int
    stored_parameters: int
    model: Transformer | None
    known: ModelDescription | None
    origin: str
    notes: tuple[str, ...] = ()


def choose_model(
    size: str | None, model: str | None, dimensions: Typed, seq_len: int, logged: ModelDescription | None = None
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
    if known is None and parameters is None and logged and not _is_whole(dimensions):
        known = logged
    if known is not None or any(value is not None for value in dimensions.values()):
        return _with_dimensions(parameters, known, dimensions, seq_len)
    if parameters is None:
        raise UsageError(
            "which model? neither --size nor --model nor dimensions are given",
            hint="--size 52B, --model llama3-8b, --model path/to/config.json, or --layers, --hidden and --vocab",
        )
    return Choice(parameters, parameters, None, None, f"the size {size or model}")


def _with_dimensions(parameters: int | None, known: ModelDescription | None, dimensions: Typed, seq_len: int) -> Choice:
    from perfscope.commands.options.model_building import agreeing, check_size, from_dimensions, given
    from perfscope.models.parameter_counts import active_parameters, total_parameters

    typed = given(dimensions)
    known = from_dimensions(typed, seq_len) if known is None else agreeing(known, typed)
    if parameters is not None:
        check_size(parameters, known)
    model = known.transformer
    return Choice(active_parameters(model), total_parameters(model), model, known, known.origin, known.notes)


def _is_whole(dimensions: Typed) -> bool:
    """Whether the typed dimensions make a model by themselves."""
    return None not in (dimensions["layers"], dimensions["hidden"], dimensions["vocab"])


def _named(text: str) -> ModelDescription | None:
    """A model by its name or file; absent where the text is a size."""
    from perfscope.sources.models.presets import find_preset, preset_names

    preset = find_preset(text)
    if preset is not None:
        return preset
    path = Path(text)
    if path.exists() or "/" in text or path.suffix in (".json", ".log", ".out", ".txt"):
        from perfscope.commands.options.model_building import read_model

        return read_model(path)
    try:
        parse_parameters(text)
    except UsageError:
        raise UsageError(
            f"the model {text!r} is no known name, no file and no size", hint=f"known: {', '.join(preset_names())}"
        ) from None
    return None
