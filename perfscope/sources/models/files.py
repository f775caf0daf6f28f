"""A model from a file: a Hugging Face ``config.json`` or a Megatron log."""

from __future__ import annotations

from pathlib import Path

from perfscope.errors import SourceError
from perfscope.models.transformer import ModelDescription
from perfscope.sources.models.huggingface import is_config_file, read_config


def read_model(path: Path) -> ModelDescription:
    """Read the dimensions of a model from a ``config.json``, the folder that holds it, or a Megatron log.

    Raises:
        SourceError: The file does not exist, cannot be read, or does not state the dimensions.
    """
    if not path.exists():
        raise SourceError(path, "does not exist")
    if is_config_file(path):
        return read_config(path)
    if path.is_dir():
        raise SourceError(path, "contains no config.json")
    # The readers of logs import NumPy, which a model by its name or config does not need.
    from perfscope.sources.models.log_models import read_log_file_model

    description = read_log_file_model(path)
    if description is None:
        raise SourceError(path, "prints no Megatron arguments, so it does not state the dimensions of the model")
    return description
