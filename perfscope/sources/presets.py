"""Models by name, from ``models.toml``."""

from __future__ import annotations

import tomllib
from functools import cache
from importlib.resources import files
from typing import Any

from perfscope.sources.model_config import to_transformer
from perfscope.transformer import KnownModel


@cache
def _table() -> dict[str, Any]:
    return tomllib.loads(files("perfscope").joinpath("models.toml").read_text("utf-8"))


def preset_names() -> tuple[str, ...]:
    """The names, in the order of the file."""
    return tuple(_table())


def find_preset(name: str) -> KnownModel | None:
    """Look a model up by its name or an alias; absent where it is not known."""
    wanted = "-".join(name.lower().replace("_", " ").split())
    for known, entry in _table().items():
        if wanted == known or wanted in entry.get("aliases", ()):
            model, notes = to_transformer(entry["config"], known)
            return KnownModel(model, f"the preset {known} ({entry['source']})", notes)
    return None
