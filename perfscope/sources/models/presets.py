"""Models by name, from ``models.toml``."""

from __future__ import annotations

import re
import tomllib
from functools import cache
from importlib.resources import files

from perfscope.models.transformer import ModelDescription
from perfscope.sources.models.huggingface import prediction_modules, to_transformer

_OF_REPOSITORY = re.compile(
    r"^[\w.-]+/(?:meta-|nvidia-)?(?=[\w.-]+$)|"
    r"(?<=\w)(?:-(?:hf|base|instruct|chat|thinking|it|pt|bf16|8k|v0\.1|0324|0528|0905|2507))+$"
)
_ALIASES = re.compile(r"^aliases = \[(.*)\]$", re.MULTILINE)


@cache
def _entries() -> dict[str, str]:
    """The text of each entry by its name; parsing all entries takes longer than a command that needs one model."""
    text = files("perfscope.models").joinpath("models.toml").read_text("utf-8")
    parts = re.split(r'^\["?([\w.-]+)"?\]$', text, flags=re.MULTILINE)
    return dict(zip(parts[1::2], parts[2::2], strict=True))


@cache
def _names() -> dict[str, str]:
    """The name of the entry by each of its names, normalised."""
    found: dict[str, str] = {}
    for preset, text in _entries().items():
        aliases = _ALIASES.search(text)
        found |= {_normalise(name): preset for name in (preset, *re.findall(r'"(.+?)"', aliases[1] if aliases else ""))}
    return found


def _normalise(name: str) -> str:
    """A name without what publishers write differently, and without the owner of a repository and its version.

    ``LLAMA3_70B``, ``Llama 3 70B`` and ``meta-llama/Meta-Llama-3-70B-Instruct`` are one.
    """
    return re.sub(r"[\s_-]", "", _OF_REPOSITORY.sub("", name.lower()))


def preset_names() -> tuple[str, ...]:
    """The names, in the order of the file."""
    return tuple(_entries())


def find_preset(name: str) -> ModelDescription | None:
    """Look a model up by its name or an alias, however it is spaced and capitalised; None where it is not listed."""
    preset = _names().get(_normalise(name))
    if preset is None:
        return None
    entry = tomllib.loads(_entries()[preset])
    config = entry["config"]
    return ModelDescription(
        transformer=to_transformer(config, preset),
        origin=f"the preset {preset} ({entry['source']})",
        seq_len=entry.get("seq_len"),
        mtp_layers=prediction_modules(config),
        published=tuple(entry.get("published", ())),
    )
