"""Connects to the Dask cluster that measures: one that runs, or one of Slurm, of Kubernetes, of this machine."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from importlib import import_module
from types import ModuleType

from perfscope.engine.cluster_choice import ClusterChoice, ClusterKind
from perfscope.errors import UsageError

try:
    from dask import config
    from distributed import Client, SpecCluster
except ImportError:
    raise UsageError("--engine dask needs dask.distributed", hint="pip install 'perfscope-toolkit[dask]'") from None

_DASHBOARD = {"dashboard_address": ":0"}  # any free port
_LONGEST_CHECK_S = 60


@contextmanager
def connect(workers: int, scheduler: str | None, cluster: ClusterChoice | None) -> Iterator[Client]:
    """A client of the cluster; one that is started here ends with the context.

    Raises:
        UsageError: The cluster cannot be reached, or cannot be started.
    """
    if cluster is not None:
        start = _start_slurm if cluster.kind is ClusterKind.SLURM else _start_kubernetes
        with start(workers, dict(cluster.options)) as started, Client(started) as client:
            yield client
        return
    with _connect_to(scheduler) if scheduler is not None else _start_here(workers) as client:
        yield client


def _start_here(workers: int) -> Client:
    # What a worker measures is small: where its memory fills it is no use to write to its disk, which may be full.
    spilling = {"distributed.worker.memory.target": False, "distributed.worker.memory.spill": False}
    with config.set(spilling):
        return Client(n_workers=workers, threads_per_worker=1, processes=True, dashboard_address=":0")


def _connect_to(scheduler: str) -> Client:
    try:
        return Client(scheduler)
    except (OSError, ValueError) as error:
        raise UsageError(f"the Dask scheduler at {scheduler} cannot be reached: {error}") from None


def _load(module: str, extra: ClusterKind) -> ModuleType:
    """Import what starts a cluster; Ctrl-C goes on to end this command.

    Raises:
        UsageError: It is not installed.
    """
    on_interrupt = signal.getsignal(signal.SIGINT)
    try:
        loaded = import_module(module)
    except ImportError as error:
        hint = f"pip install 'perfscope-toolkit[{extra}]'"
        raise UsageError(f"--cluster {extra} needs {error.name}, which is not installed", hint=hint) from None
    if signal.getsignal(signal.SIGINT) is not on_interrupt:  # of dask-jobqueue: it ends Python as if all were well
        signal.signal(signal.SIGINT, on_interrupt)
    return loaded


def _start_slurm(workers: int, options: dict[str, object]) -> SpecCluster:
    """As many Slurm jobs as make the workers; the scheduler runs here.

    Raises:
        UsageError: There is no Slurm, or it refuses such a job.
    """
    jobqueue = _load("dask_jobqueue", ClusterKind.SLURM)
    if shutil.which("sbatch") is None:
        raise UsageError("--cluster slurm needs sbatch, which is not here", hint="run it where jobs are submitted")
    configured = config.get("jobqueue.slurm", {})
    plain = {"cores": 1, "processes": 1, "memory": "4GB", "scheduler_options": _DASHBOARD}
    if not configured.get("log-directory") and "log_directory" not in options:
        plain["job_extra_directives"] = [f"--output={os.devnull}"]
    unset = {name: value for name, value in plain.items() if configured.get(name.replace("_", "-")) in (None, {}, [])}
    try:
        cluster = jobqueue.SLURMCluster(**{**unset, **options})
    except (TypeError, ValueError) as error:
        raise UsageError(f"Slurm's cluster cannot be made: {error}") from None
    try:
        _require_accepted(cluster.job_script())
        cluster.scale(n=workers)
    except BaseException:
        cluster.close()
        raise
    return cluster


def _require_accepted(script: str) -> None:
    """Ask Slurm whether it would take a job.

    Raises:
        UsageError: It would not.
    """
    with tempfile.NamedTemporaryFile("w", suffix=".sh") as file:
        file.write(script)
        file.flush()
        words = ["sbatch", "--test-only", file.name]
        answer = subprocess.run(words, capture_output=True, text=True, timeout=_LONGEST_CHECK_S, check=False)
    if answer.returncode:
        raise UsageError(f"Slurm refuses the job of a worker: {' '.join(answer.stderr.split())}")


def _start_kubernetes(workers: int, options: dict[str, object]) -> SpecCluster:
    """A DaskCluster of Dask's operator.

    Raises:
        UsageError: No image is named, or there is no cluster.
    """
    kubernetes = _load("dask_kubernetes.operator", ClusterKind.KUBERNETES)
    if "image" not in options and "custom_cluster_spec" not in options:
        hint = 'write a file: kind = "kubernetes" and image = "REGISTRY/IMAGE", and give it to --cluster'
        raise UsageError("--cluster kubernetes needs an image in which perfscope is installed", hint=hint)
    _require_kubernetes()
    plain = {"name": f"perfscope-{os.getpid()}", "n_workers": workers, "quiet": True}
    try:
        return kubernetes.KubeCluster(**{**plain, **options})
    except (TypeError, ValueError, OSError, RuntimeError) as error:
        raise UsageError(f"Kubernetes' cluster cannot be started: {error}") from None


def _require_kubernetes() -> None:
    """Ask Kubernetes for its version: a cluster that cannot be made would be looked for again when Python ends.

    Raises:
        UsageError: It gives none.
    """
    kr8s = _load("kr8s", ClusterKind.KUBERNETES)
    http = _load("httpx", ClusterKind.KUBERNETES)
    try:
        kr8s.api().version()
    except (ValueError, OSError, http.HTTPError, kr8s.ServerError) as error:
        raise UsageError(f"Kubernetes cannot be reached: {error}") from None
