"""The model that a training log describes."""

from __future__ import annotations

from perfscope.models.transformer import ModelDescription
from perfscope.sources.models.megatron_arguments import model_from_arguments
from perfscope.tables.joblog import JobLog


def read_log_model(log: JobLog) -> ModelDescription | None:
    """The model that a log's arguments describe; None where it prints none, or not all dimensions.

    Raises:
        UsageError: The arguments contradict each other.
    """
    tokens, padded = log.number("vocab_tokens"), log.number("vocab")
    vocabulary = (tokens, padded) if tokens is not None and padded is not None else None
    transformer = model_from_arguments(log.arguments, vocabulary, log.path)
    return ModelDescription(transformer, f"the arguments in {log.path}") if transformer else None
