"""Logs of DLPerf's benchmarks, read as their own extraction scripts read them: MODEL_bBATCH_PRECISION_RUN.log in 4n8g/.

The scripts are Oneflow-Inc/DLPerf ``MxNet/BERT/extract_mxnet_logs.py`` and
``DeepSpeed/Megatron-LM/extract_deepspeed_logs.py``. Where a script would end with a traceback, the run is read all the
same.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
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
_GLUON = re.compile(rb"(?:\[step (?P<step>\d+)\](?:(?!\[step ).)*?)?latency=(?P<speed>[^\s,]+) ms/batch(?P<new>)")
_DEEPSPEED = re.compile(
    rb"(?:\b\d+/(?P<step>\d+), |global_step=(?P<new>\d+), )?(?:Running|RunningAvg)?"
    rb"SamplesPerSec=(?P<speed>[-+\d.eE]+|nan|inf)(?:, *CurrSamplesPerSec=[^\s,]+)?"
)


def read_protocol(paths: Iterable[Path], protocol: Protocol) -> tuple[list[ProtocolRun], list[str]]:
    """The runs of a benchmark, and notes on files that are not its logs.

    Fails where a path does not exist, or no folder holds its logs.
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
        try:
            speeds = tuple(_read_speeds(path, protocol))
        except SourceError as error:
            notes.append(str(error))
            continue
        runs.append(
            ProtocolRun(
                path=str(path),
                cluster=ClusterSize(int(cluster[1]) * int(cluster[2]), nodes=int(cluster[1])),
                model=name[1],
                batch_per_gpu=int(name[2]),
                precision=name[3],
                run=int(name[4]),
                speeds=speeds,
            )
        )
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


def _read_speeds(path: Path, protocol: Protocol) -> Iterator[LoggedSpeed]:
    """The speed of every record, several where records share a line."""
    is_gluon = protocol is Protocol.MXNET_BERT
    for block in read_blocks(path):
        for line in to_plain_text(block).splitlines():
            if is_gluon and b"throughput=" not in line:
                continue
            for match in (_GLUON if is_gluon else _DEEPSPEED).finditer(line):
                value, step = parse_number(match["speed"]), match["step"] or match["new"]
                if value is not None and value > 0:
                    yield LoggedSpeed(int(step) if step else None, value)
