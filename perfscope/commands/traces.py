"""Options of commands that read traces: where they are read."""

from __future__ import annotations

from typing import Annotated, NamedTuple

import typer

from perfscope.commands.options import require_positive
from perfscope.engine.execution import Execution, available_processors
from perfscope.errors import UsageError

#: Where the help lists them.
PANEL = "Execution"


class ExecutionOptions(NamedTuple):
    """Where traces are read.

    Attributes:
        workers: How many processes read traces; as many as there are processors where it is None.
        dask: Address of a Dask scheduler, whose workers read them instead.
    """

    workers: Annotated[
        int | None,
        typer.Option(
            help="Number of processes that read traces.", show_default="number of processors", rich_help_panel=PANEL
        ),
    ] = None
    dask: Annotated[
        str | None,
        typer.Option(
            help="Address of a Dask cluster that reads traces instead: tcp://HOST:8786.", rich_help_panel=PANEL
        ),
    ] = None

    def execution(self, *, shows_progress: bool) -> Execution:
        """The execution that they ask for.

        Raises:
            UsageError: They contradict each other.
        """
        if self.workers is not None:
            require_positive("--workers", self.workers)
            if self.dask is not None:
                raise UsageError("--workers are processes of this machine; the cluster of --dask has its own")
        return Execution(self.workers or available_processors(), self.dask, shows_progress)
