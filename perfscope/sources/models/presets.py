"""Models by name, from ``models.toml``."""

from __future__ import annotations

import re
import tomllib
from functools import cache
from importlib.resources import files

from perfscope.models.transformer import ModelDescription
from perfscope.sources.models.huggingface import to_transformer


@cache
def _entries() -> dict[str, str]:
    """The text of each entry by its name; parsing all entries takes longer than a command that needs one model."""
    text = files("perfscope.models").joinpath("models.toml").read_text("utf-8")
    parts = re.split(r'^\["?([\w.-]+)"?\]$', text, flags=re.MULTILINE)
    return dict(zip(parts[1::2], parts[2::2], strict=True))


def preset_names() -> tuple[str, ...]:
    """The names, in the order of the file."""
    return tuple(_entries())


def find_preset(name: str) -> ModelDescription | None:
    """Look a model up by its name or an alias; None where it is not listed."""
    key = "-".join(name.lower().replace("_", " ").split())
    for preset, text in _entries().items():
        if key != preset and f'"{key}"' not in text:
            continue
        entry = tomllib.loads(text)
        if key == preset or key in entry.get("aliases", ()):
            model, notes = to_transformer(entry["config"], preset)
            return ModelDescription(
                model, f"the preset {preset} ({entry['source']})", notes, seq_len=entry.get("seq_len")
            )
    return None
