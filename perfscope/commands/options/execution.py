"""Where traces are read: the options of the execution backend."""

from __future__ import annotations

from typing import Annotated, NamedTuple

import typer

from perfscope.commands.options.common import require_positive
from perfscope.engine.cluster_choice import read_cluster
from perfscope.engine.execution import Backend, Execution, available_processors
from perfscope.errors import UsageError

#: Where the help lists them.
PANEL = "Execution"


class ExecutionOptions(NamedTuple):
    """Where traces are read.

    Attributes:
        engine: The backend; processes of this machine where it is None.
        workers: How many traces are read in parallel; as many as there are processors where it is None.
        scheduler: Address of a Dask scheduler, or of a Ray cluster.
        cluster: The cluster to start.
    """

    engine: Annotated[
        Backend | None,
        typer.Option("--engine", help="Execution backend.", show_default="process", rich_help_panel=PANEL),
    ] = None
    workers: Annotated[
        int | None,
        typer.Option(help="Number of parallel workers.", show_default="number of processors", rich_help_panel=PANEL),
    ] = None
    scheduler: Annotated[
        str | None,
        typer.Option(
            help="Address of a Dask scheduler: tcp://HOST:8786; with `--engine ray` of a Ray cluster.",
            show_default="none: a cluster on this machine",
            rich_help_panel=PANEL,
        ),
    ] = None
    cluster: Annotated[
        str | None,
        typer.Option(
            help="Cluster to start for `--engine dask`: slurm, kubernetes, or a TOML file with its kind and options.",
            show_default="none: a cluster on this machine",
            rich_help_panel=PANEL,
        ),
    ] = None

    @property
    def uses_cluster(self) -> bool:
        """Whether the workers may run elsewhere."""
        return self.scheduler is not None or self.cluster is not None

    def execution(self, *, shows_progress: bool) -> Execution:
        """The execution that they ask for.

        Raises:
            SourceError: The file of a cluster cannot be read.
            UsageError: They contradict each other.
        """
        if self.workers is not None:
            require_positive("--workers", self.workers)
        if self.scheduler is not None and self.engine not in (None, Backend.DASK, Backend.RAY):
            raise UsageError(f"--scheduler needs --engine dask or ray, not {self.engine}")
        if self.cluster is not None and self.engine not in (None, Backend.DASK):
            raise UsageError(f"--cluster needs --engine dask, not {self.engine}")
        if self.scheduler is not None and self.cluster is not None:
            raise UsageError("--scheduler names a cluster that runs, --cluster one to be started: give one of them")
        return Execution(
            backend=self.engine or (Backend.DASK if self.uses_cluster else Backend.PROCESS),
            workers=self.workers or available_processors(),
            scheduler=self.scheduler,
            cluster=None if self.cluster is None else read_cluster(self.cluster),
            shows_progress=shows_progress,
        )
