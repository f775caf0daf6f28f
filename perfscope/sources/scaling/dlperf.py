"""Logs of DLPerf's benchmarks, read as their own extraction scripts read them: MODEL_bBATCH_PRECISION_RUN.log in 4n8g/.

The scripts are Oneflow-Inc/DLPerf ``MxNet/BERT/extract_mxnet_logs.py`` and
``DeepSpeed/Megatron-LM/extract_deepspeed_logs.py``. Where a script would end with a traceback, the run is read all the
same and states why the script fails.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import replace
from enum import StrEnum
from pathlib import Path

from perfscope.errors import SourceError, UsageError
from perfscope.sources.joblog.files import natural_order
from perfscope.sources.joblog.text import parse_number, read_blocks, to_plain_text
from perfscope.tables.scaling import ClusterSize, LoggedSpeed, ProtocolRun


class Protocol(StrEnum):
    """A benchmark, whose rules define which line states a speed."""

    MXNET_BERT = "dlperf-mxnet-bert"
    DEEPSPEED = "dlperf-deepspeed"


_CLUSTER = re.compile(r"(\d+)n(\d+)g")
_NAME = re.compile(r"([^_]+)_b(\d+)_([^_]+)_(\d+)\.log")
_GLUON = re.compile(rb"(?:\[step (\d+)\](?:(?!\[step ).)*?)?latency=([^\s,]+) ms/batch")
_DEEPSPEED = re.compile(
    rb"(?:\b\d+/(?P<old>\d+), |global_step=(?P<new>\d+), )?(?:Running|RunningAvg)?"
    rb"SamplesPerSec=(?P<speed>[-+\d.eE]+|nan|inf)(?:, *CurrSamplesPerSec=[^\s,]+)?"
)
_SCRIPT_LATENCY = re.compile(rb"latency=(\d+.\d+) ms/batch")
_MOST_SCRIPT_NODES, _MOST_SCRIPT_GPUS = 9, 99


def read_protocol(paths: Iterable[Path], protocol: Protocol) -> tuple[list[ProtocolRun], list[str]]:
    """Read every log of a benchmark.

    Returns:
        The runs, and notes on files that are not logs of the benchmark.

    Raises:
        SourceError: A path does not exist.
        UsageError: No folder holds such logs.
    """
    runs: list[ProtocolRun] = []
    notes: list[str] = []
    for path in _find_logs(paths):
        cluster, name = _CLUSTER.fullmatch(path.parent.name), _NAME.fullmatch(path.name)
        if cluster is None:
            continue
        if name is None:
            notes.append(
                f"{path}: not MODEL_bBATCH_PRECISION_RUN.log, so it is excluded; the original script fails there"
            )
            continue
        run = ProtocolRun(
            path=str(path),
            cluster=ClusterSize(int(cluster[1]), int(cluster[2])),
            model=name[1],
            batch_per_gpu=int(name[2]),
            precision=name[3],
            run=int(name[4]),
            speeds=(),
            folder_position=_find_folder_position(path),
        )
        try:
            runs.append(_read_speeds(run, path, protocol))
        except SourceError as error:
            notes.append(str(error))
    if not runs:
        raise UsageError(
            "no log of the protocol was found",
            hint="it reads MODEL_bBATCH_PRECISION_RUN.log in folders named 1n1g, 1n8g, 2n8g and so on",
        )
    return runs, notes


def _find_logs(paths: Iterable[Path]) -> list[Path]:
    logs: dict[Path, None] = {}
    for path in paths:
        if not path.exists():
            raise SourceError(path, "does not exist")
        logs.update(dict.fromkeys(sorted(path.rglob("*.log"), key=natural_order) if path.is_dir() else [path]))
    return list(logs)


def _find_folder_position(path: Path) -> int:
    """The position of a log in its folder's own order, which ``glob`` keeps."""
    return next(position for position, file in enumerate(path.parent.iterdir()) if file.name == path.name)


def _read_speeds(run: ProtocolRun, path: Path, protocol: Protocol) -> ProtocolRun:
    speeds: list[LoggedSpeed] = []
    failure = _find_name_failure(run.cluster)
    parse = _parse_latencies if protocol is Protocol.MXNET_BERT else _parse_samples_per_s
    for block in read_blocks(path):
        for line in to_plain_text(block).splitlines(keepends=True):
            line_speeds, line_failure = parse(line)
            speeds += line_speeds
            failure = failure or line_failure
    return replace(run, speeds=tuple(speeds), script_failure=failure)


def _find_name_failure(cluster: ClusterSize) -> str | None:
    """The script reads one digit of nodes and up to two of GPUs, so that ``10n8g`` has one node."""
    if cluster.nodes > _MOST_SCRIPT_NODES or cluster.gpus_per_node > _MOST_SCRIPT_GPUS:
        return f"the original script cannot read the name {cluster}: it expects one digit of nodes, one or two of GPUs"
    return None


def _parse_latencies(line: bytes) -> tuple[list[LoggedSpeed], str | None]:
    """The latencies of a line, several where records share a line, and why the script fails at it."""
    if b"throughput=" not in line:
        return [], None
    latencies = [
        LoggedSpeed(int(match[1]) if match[1] else None, value)
        for match in _GLUON.finditer(line)
        for value in (parse_number(match[2]),)
        if value is not None and value > 0
    ]
    if len(latencies) > 1:
        return latencies, "records share a line, of which the original script takes the first"
    if not latencies or not _SCRIPT_LATENCY.search(line):
        return latencies, "a line with a throughput contains no latency, at which the original script fails"
    return latencies, None


def _parse_samples_per_s(line: bytes) -> tuple[list[LoggedSpeed], str | None]:
    """The speeds of a line, several where records share a line, and why the script fails at it."""
    if b"SamplesPerSec" not in line:
        return [], None
    matches = list(_DEEPSPEED.finditer(line))
    values = [parse_number(match["speed"]) for match in matches]
    speeds = [
        LoggedSpeed(_parse_step(match), value)
        for match, value in zip(matches, values, strict=True)
        if value is not None and value > 0
    ]
    if 0 in values:
        return speeds, "a line states 0 samples/s; it is excluded, and the original script counts it"
    if not speeds:
        return [], "a line with SamplesPerSec contains no speed, at which the original script fails or writes NaN"
    if not line.endswith(b"\n"):
        return speeds, "the last line has no end, at which the original script fails"
    if line[matches[-1].end() :].strip() or len(matches) > 1:
        return speeds, (
            "a line continues after its SamplesPerSec, as DeepSpeed's do since 0.4; the original script fails there"
        )
    return speeds, None


def _parse_step(match: re.Match[bytes]) -> int | None:
    step = match["old"] or match["new"]
    return int(step) if step else None
