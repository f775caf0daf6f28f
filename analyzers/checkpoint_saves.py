"""The checkpoint saves that the hooks timed in a run."""

from __future__ import annotations

from perfscope.analyzers import saves
from perfscope.errors import MissingInput
from perfscope.tables.run import Run


def analyze(run: Run) -> saves.SaveTimes:
    """Bring the ranks' timings of each save together; see ``perfscope.analyzers.saves``.

    Raises:
        MissingInput: The run saved no checkpoint that a hook timed.
    """
    if run.saves is None:
        raise MissingInput("no checkpoint save was timed")
    return saves.analyze(run.saves)
