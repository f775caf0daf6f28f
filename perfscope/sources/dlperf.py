"""Logs of DLPerf's benchmarks, read as their own extraction scripts read them: MODEL_bBATCH_PRECISION_RUN.log in 4n8g/.

The scripts are Oneflow-Inc/DLPerf ``MxNet/BERT/extract_mxnet_logs.py`` and
``DeepSpeed/Megatron-LM/extract_deepspeed_logs.py``. Where one of them would end with a traceback, the run is read all
the same and says why it would.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import replace
from enum import StrEnum
from pathlib import Path

from perfscope.errors import SourceError, UsageError
from perfscope.sources.joblog.draft import number
from perfscope.sources.joblog.files import natural
from perfscope.sources.joblog.text import blocks, plain
from perfscope.tables.scaling import Case, Printed, ProtocolRun


class Protocol(StrEnum):
    """Whose rules: which line states a speed."""

    MXNET_BERT = "dlperf-mxnet-bert"
    DEEPSPEED = "dlperf-deepspeed"


_CASE = re.compile(r"(\d+)n(\d+)g")
_NAME = re.compile(r"([^_]+)_b(\d+)_([^_]+)_(\d+)\.log")
_STEP = re.compile(rb"\[step (\d+)\]|\d+/(\d+), |global_step=(\d+)")
_LATENCY = re.compile(rb"latency=([^\s,]+) ms/batch")
_SPEED = re.compile(rb"SamplesPerSec=([^\s,]+)(.?)")
_THEIR_LATENCY = re.compile(rb"latency=(\d+.\d+) ms/batch")


def read_protocol(paths: Iterable[Path], protocol: Protocol) -> tuple[list[ProtocolRun], list[str]]:
    """Read every log of a benchmark; also say what lies there and is none.

    Raises:
        UsageError: A path does not exist, or no folder holds such logs.
    """
    runs: list[ProtocolRun] = []
    notes: list[str] = []
    for path in _logs(paths):
        case, name = _CASE.fullmatch(path.parent.name), _NAME.fullmatch(path.name)
        if case is None:
            continue
        if name is None:
            notes.append(
                f"{path}: not MODEL_bBATCH_PRECISION_RUN.log, so it is left out; the original script stops there"
            )
            continue
        run = ProtocolRun(
            path=str(path),
            case=Case(int(case[1]), int(case[2])),
            model=name[1],
            batch_per_gpu=int(name[2]),
            precision=name[3],
            run=int(name[4]),
            printed=(),
        )
        try:
            runs.append(_read(run, path, protocol))
        except SourceError as error:
            notes.append(str(error))
    if not runs:
        raise UsageError(
            "no log of the protocol was found",
            hint="it reads MODEL_bBATCH_PRECISION_RUN.log in folders named 1n1g, 1n8g, 2n8g and so on",
        )
    return runs, notes


def _logs(paths: Iterable[Path]) -> list[Path]:
    found: dict[Path, None] = {}
    for path in paths:
        if not path.exists():
            raise UsageError(f"{path} does not exist")
        found.update(dict.fromkeys(sorted(path.rglob("*.log"), key=natural) if path.is_dir() else [path]))
    return list(found)


def _read(run: ProtocolRun, path: Path, protocol: Protocol) -> ProtocolRun:
    printed: list[Printed] = []
    stops = _stops_at_name(run.case)
    keyword = b"throughput=" if protocol is Protocol.MXNET_BERT else b"SamplesPerSec"
    for block in blocks(path):
        for line in plain(block).split(b"\n"):
            if keyword not in line:
                continue
            value, trouble = (_latency if protocol is Protocol.MXNET_BERT else _speed)(line)
            stops = stops or trouble
            step = _STEP.search(line)
            if value is not None:
                printed.append(Printed(int(next(filter(None, step.groups()))) if step else None, value))
    return replace(run, printed=tuple(printed), stops=stops)


def _stops_at_name(case: Case) -> str | None:
    """Their script takes the first character of ``10n8g`` for the nodes."""
    if case.nodes >= 10 or case.gpus_per_node >= 100:  # noqa: PLR2004 - two digits, three digits
        return f"the original script cannot read the name {case}: it expects one digit of nodes, one or two of GPUs"
    return None


def _latency(line: bytes) -> tuple[float | None, str | None]:
    match = _LATENCY.search(line)
    value = number(match[1]) if match else None
    if value is None or value <= 0 or not _THEIR_LATENCY.search(line):
        return None, "a line with a throughput holds no latency, at which the original script stops"
    return value, None


def _speed(line: bytes) -> tuple[float | None, str | None]:
    match = _SPEED.search(line)
    value = number(match[1]) if match else None
    if match is None or value is None or value <= 0:
        return None, "a line with SamplesPerSec holds no speed, at which the original script stops or writes NaN"
    trouble = "a line goes on after its SamplesPerSec, as DeepSpeed's do since 0.4; the original script stops there"
    return value, trouble if match[2].strip() else None
