"""Reads the runs of a scaling study: logs, and folders of ``perfscope profile``."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from perfscope.analyzers import steps
from perfscope.analyzers.logs.setup import Overrides
from perfscope.analyzers.logs.summary import summarize_log
from perfscope.analyzers.scaling.dlperf import ProtocolResult
from perfscope.errors import MissingInput, SourceError
from perfscope.sources.joblog import find_logs, read_log
from perfscope.sources.runs.folder import is_run
from perfscope.sources.runs.run import read_run
from perfscope.sources.scaling.run_facts import (
    find_cluster_size,
    find_model_name,
    find_smi_samples,
    read_nvml_use,
)
from perfscope.tables.scaling import ScalingRun

#: Flags of a log's summary that cast doubt on its throughput.
_DOUBTS = ("throughput-disagrees", "name-disagrees", "mixed-jobs")


def read_runs(paths: list[Path], warmup: int | None) -> tuple[list[ScalingRun], list[str]]:
    """Read the runs of folders.

    Returns:
        The runs, and why the remaining logs are no runs.
    """
    folders = [folder for path in paths if path.is_dir() for folder in _list_run_folders(path)]
    runs = [run for run in map(_read_profiled_run, folders) if run is not None]
    problems: list[str] = []
    for path in find_logs(paths):
        if any(folder in path.parents for folder in folders):
            continue
        try:
            run = _read_logged_run(path, warmup)
        except SourceError as error:
            problems.append(str(error))
            continue
        if run is None:
            problems.append(f"{path}: its numbers of nodes and GPUs are unknown, or it is not a log")
        else:
            runs.append(run)
    return runs, problems


def list_protocol_runs(result: ProtocolResult) -> Iterator[ScalingRun]:
    """The runs of a benchmark with the speeds of its protocol."""
    for model, speeds in result.speeds.items():
        for speed in speeds:
            for run, samples_per_s in speed.runs.items():
                yield ScalingRun(
                    path=f"{speed.cluster}, run {run}",
                    cluster=speed.cluster,
                    model=model,
                    batch=speed.batch_size_per_device * speed.cluster.gpus,
                    precision=None,
                    seq_len=None,
                    zero_stage=None,
                    dp=speed.cluster.gpus,
                    mp=1,
                    samples_per_s=samples_per_s,
                    device=None,
                    out_of_memory=False,
                )


def _list_run_folders(path: Path) -> list[Path]:
    if is_run(path):
        return [path]
    return [folder for folder in sorted(path.iterdir()) if folder.is_dir() and is_run(folder)]


def _read_logged_run(path: Path, warmup: int | None) -> ScalingRun | None:
    log = read_log(path)
    summary = summarize_log(log, Overrides(warmup=warmup))
    cluster = find_cluster_size(path, log, summary.setup.gpus)
    if cluster is None or summary.status == "unrecognised":
        return None
    precision = log.fact("precision")
    batch = summary.setup.gbs
    layout = summary.setup.layout
    micro_batch, replicas = layout.mbs, layout.dp
    if batch is None and micro_batch is not None:
        batch = micro_batch * (replicas or cluster.gpus) * (log.number("gas") or 1)
    return ScalingRun(
        path=str(path),
        cluster=cluster,
        model=find_model_name(path, log),
        batch=batch,
        precision=None if precision is None else str(precision.value),
        seq_len=log.number("seq_len"),
        zero_stage=log.number("zero_stage"),
        dp=replicas,
        mp=layout.tp,
        samples_per_s=summary.samples_per_s,
        device=find_smi_samples(path),
        out_of_memory=log.out_of_memory is not None,
        notes=tuple(flag for flag in summary.flags if flag.startswith(_DOUBTS)),
    )


def _read_profiled_run(path: Path) -> ScalingRun | None:
    run = read_run(path)
    world_size = max((rank.world_size for rank in run.ranks), default=0)
    hosts = len({rank.host for rank in run.ranks})
    cluster = find_cluster_size(path, None, world_size or None, hosts or None)
    if cluster is None:
        return None
    try:
        result = steps.analyze(run)
    except MissingInput:
        speed, batch = None, None
    else:
        speed = result.samples_per_s
        batch = None if result.samples_per_step is None else round(result.samples_per_step)
    return ScalingRun(
        path=str(path),
        cluster=cluster,
        model=find_model_name(path, None),
        batch=batch,
        precision=None,
        seq_len=None,
        zero_stage=None,
        dp=None,
        mp=None,
        samples_per_s=speed,
        device=read_nvml_use(path),
        out_of_memory=False,
    )
