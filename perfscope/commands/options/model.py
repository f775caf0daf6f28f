"""Which model a command is about: the options, and the order of the sources of its dimensions.

``--model`` names a preset, a file or a size. Typed dimensions complete it or, without it, make the model. The model of
a log is used where neither is typed. ``--size`` alone gives the number of parameters, and is checked against the
dimensions where there are any.
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, NamedTuple

import typer

from perfscope.commands.options.dimensions import Dimensions
from perfscope.commands.options.model_dimensions import check_size, complete_description, describe_dimensions
from perfscope.errors import UsageError
from perfscope.models.parameter_counts import active_parameters, total_parameters
from perfscope.models.transformer import ModelDescription, Transformer
from perfscope.sources.models.files import read_model
from perfscope.sources.models.presets import find_preset, preset_names
from perfscope.units import parse_parameters

_PANEL = "Model"
_FILE_SUFFIXES = (".json", ".log", ".out", ".txt")


class ModelOptions(NamedTuple):
    """A model by its size, its name or a file."""

    size: Annotated[
        str | None,
        typer.Option(help="Number of parameters: 52B, 7.5B, 125M. B is 10**9.", rich_help_panel=_PANEL),
    ] = None
    model: Annotated[
        str | None,
        typer.Option(
            "--model",
            "--config",
            help="A name (llama3-8b), a size (13B), a Hugging Face config.json or its folder, or a training log.",
            rich_help_panel=_PANEL,
        ),
    ] = None


class ModelChoice(NamedTuple):
    """The model that a command is about.

    Attributes:
        active_parameters: The parameters that one token uses.
        total_parameters: All parameters, every expert counted.
        transformer: The dimensions; None where only a size was typed.
        origin: Where the model comes from, as a phrase for reports.
        notes: What was assumed.
        seq_len: Tokens in a sequence of the model's pre-training; None where unknown.
    """

    active_parameters: int
    total_parameters: int
    transformer: Transformer | None
    origin: str
    notes: tuple[str, ...] = ()
    seq_len: int | None = None


def choose_model(
    options: ModelOptions, dimensions: Dimensions, seq_len: int, logged: ModelDescription | None = None
) -> ModelChoice:
    """Find the model in what was typed, or else in a log.

    Args:
        options: The size, name or file that was typed.
        dimensions: The dimensions that were typed.
        seq_len: Tokens in a sequence: the learned positions of a GPT that is made from its dimensions.
        logged: The model that a log describes.

    Raises:
        UsageError: No model was typed or logged, it is unknown, or its sources contradict each other.
    """
    size = parse_parameters(options.size) if options.size else None
    model = _find_model(options.model) if options.model else None
    description = model if isinstance(model, ModelDescription) else None
    if isinstance(model, int):
        if size not in (None, model):
            raise UsageError(f"--size {options.size} contradicts --model {options.model}")
        size = model
    if description is None and size is None and dimensions.missing:
        description = logged
    if description is not None:
        description = complete_description(description, dimensions)
    elif dimensions.typed:
        description = describe_dimensions(dimensions, seq_len)
    if description is not None:
        if size is not None:
            check_size(size, description.transformer)
        return choose_description(description)
    if size is None:
        raise UsageError(
            "which model? neither --size nor --model nor dimensions are given",
            hint="--size 52B, --model llama3-8b, --model path/to/config.json, or --layers, --hidden and --vocab",
        )
    return ModelChoice(size, size, None, f"the size {options.size or options.model}")


def choose_description(description: ModelDescription) -> ModelChoice:
    """The choice of a model whose dimensions are known."""
    model = description.transformer
    stated = description.parameters if model.experts is None else None
    return ModelChoice(
        stated or active_parameters(model),
        stated or total_parameters(model),
        model,
        description.origin,
        description.notes,
        description.seq_len,
    )


def _find_model(text: str) -> ModelDescription | int:
    """A model by its name or file, or the number of parameters that the text or a log states."""
    preset = find_preset(text)
    if preset is not None:
        return preset
    path = Path(text)
    if path.exists() or "/" in text or path.suffix in _FILE_SUFFIXES:
        description = read_model(path)
        if description is not None:
            return description
        # The readers of logs import NumPy, which a model by its name or config does not need.
        from perfscope.commands.options.logged_model import read_logged_model

        return read_logged_model(path)
    try:
        return parse_parameters(text)
    except UsageError:
        raise UsageError(
            f"the model {text!r} is neither a known name nor a file nor a size",
            hint=f"known: {', '.join(preset_names())}",
        ) from None
