"""The model of a training log, the same for every command: dimensions, and the size that ``perfscope logs`` reports."""

from __future__ import annotations

from pathlib import Path

from perfscope.analyzers.logs.setup import Overrides, stated_setup
from perfscope.errors import SourceError
from perfscope.models.transformer import ModelDescription
from perfscope.sources.joblog import read_log
from perfscope.sources.models.log_models import read_log_model
from perfscope.tables.joblog import JobLog


def read_logged_model(path: Path) -> ModelDescription | int:
    """The model of a log file, or its number of parameters where the log does not print all dimensions.

    Raises:
        SourceError: The file cannot be read, or states neither.
        UsageError: Its arguments contradict each other.
    """
    log = read_log(path)
    description = describe_logged_model(log)
    parameters = stated_setup(log, Overrides()).parameters
    if description is None and parameters is None:
        raise SourceError(
            path, "prints no Megatron arguments and no size, so it does not state the dimensions of the model"
        )
    return parameters or 0 if description is None else description


def describe_logged_model(log: JobLog) -> ModelDescription | None:
    """The model that a log's arguments describe, with the size that the log states; None without its dimensions."""
    description = read_log_model(log)
    return None if description is None else description._replace(parameters=stated_setup(log, Overrides()).parameters)
