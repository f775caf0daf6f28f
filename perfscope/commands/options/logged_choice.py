"""The model that a training log chooses where none was typed."""

from __future__ import annotations

from perfscope.analyzers.logs.setup import Overrides, stated_setup
from perfscope.commands.options.logged_model import describe_logged_model
from perfscope.commands.options.model import ModelChoice, choose_description
from perfscope.tables.joblog import JobLog


def choose_logged_model(log: JobLog) -> ModelChoice | None:
    """The model of a log with the size that ``perfscope logs`` reports; None where the log states neither."""
    description = describe_logged_model(log)
    if description is not None:
        return choose_description(description)
    setup = stated_setup(log, Overrides())
    if setup.parameters is None:
        return None
    origin = f"the size that {log.path} states ({setup.parameters_source})"
    return ModelChoice(setup.parameters, setup.parameters, None, origin)
