"""Options of commands that read traces: where they are read, and kernels of the user's own that communicate."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, NamedTuple

import typer

from perfscope.commands.options import require_positive
from perfscope.engine.execution import Execution, available_processors
from perfscope.engine.kernel_patterns import read_patterns
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


Kernels = Annotated[
    Path | None,
    typer.Option(
        "--kernels",
        metavar="FILE",
        help="Count further kernels as communication: a regular expression a line, searched for in their names.",
        show_default="the libraries that perfscope knows",
    ),
]


def read_kernels(path: Path | None) -> tuple[str, ...]:
    """The patterns of a file; none without one.

    Raises:
        SourceError: It cannot be read, or a line is no regular expression.
    """
    return () if path is None else read_patterns(path)
