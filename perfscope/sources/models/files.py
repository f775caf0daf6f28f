"""A model from a Hugging Face ``config.json``."""

from __future__ import annotations

from pathlib import Path

from perfscope.errors import SourceError
from perfscope.models.transformer import ModelDescription
from perfscope.sources.models.huggingface import is_config_file, read_config


def read_model(path: Path) -> ModelDescription | None:
    """Read the dimensions of a model from a ``config.json`` or the folder that holds it; None for another file.

    Raises:
        SourceError: The file does not exist, cannot be read, or does not state the dimensions.
    """
    if not path.exists():
        raise SourceError(path, "does not exist")
    if is_config_file(path):
        return read_config(path)
    if path.is_dir():
        raise SourceError(path, "contains no config.json")
    return None
