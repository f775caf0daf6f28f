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
from perfscope.sources.joblog.files import natural_order
from perfscope.sources.joblog.line_fields import parse_number
from perfscope.sources.joblog.text import read_blocks, to_plain_text
from perfscope.tables.scaling import Case, Printed, ProtocolRun


class Protocol(StrEnum):
    """Whose rules: which line states a speed."""

    MXNET_BERT = "dlperf-mxnet-bert"
    DEEPSPEED = "dlperf-deepspeed"


_CASE = re.compile(r"(\d+)n(\d+)g")
_NAME = re.compile(r"([^_]+)_b(\d+)_([^_]+)_(\d+)\.log")
_GLUON = re.compile(rb"(?:\[step (\d+)\](?:(?!\[step ).)*?)?latency=([^\s,]+) ms/batch")
_DEEPSPEED = re.compile(
    rb"(?:\b\d+/(?P<old>\d+), |global_step=(?P<new>\d+), )?(?:Running|RunningAvg)?"
    rb"SamplesPerSec=(?P<speed>[-+\d.eE]+|nan|inf)(?:, *CurrSamplesPerSec=[^\s,]+)?"
)
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
            listed=_listed(path),
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
        found.update(dict.fromkeys(sorted(path.rglob("*.log"), key=natural_order) if path.is_dir() else [path]))
    return list(found)


def _listed(path: Path) -> int:
    """Where a log stands in its folder's own order, which ``glob`` keeps."""
    return next(place for place, file in enumerate(path.parent.iterdir()) if file.name == path.name)


def _read(run: ProtocolRun, path: Path, protocol: Protocol) -> ProtocolRun:
    printed: list[Printed] = []
    stops = _stops_at_name(run.case)
    read = _latencies if protocol is Protocol.MXNET_BERT else _speeds
    for block in read_blocks(path):
        for line in to_plain_text(block).splitlines(keepends=True):
            values, trouble = read(line)
            printed += values
            stops = stops or trouble
    return replace(run, printed=tuple(printed), stops=stops)


def _stops_at_name(case: Case) -> str | None:
    """Their script takes the first character of ``10n8g`` for the nodes."""
    if case.nodes >= 10 or case.gpus_per_node >= 100:  # noqa: PLR2004 - two digits, three digits
        return f"the original script cannot read the name {case}: it expects one digit of nodes, one or two of GPUs"
    return None


def _latencies(line: bytes) -> tuple[list[Printed], str | None]:
    """The latencies of a line, more than one where records are glued together."""
    if b"throughput=" not in line:
        return [], None
    found = [
        Printed(int(match[1]) if match[1] else None, value)
        for match in _GLUON.finditer(line)
        for value in (parse_number(match[2]),)
        if value is not None and value > 0
    ]
    if len(found) > 1:
        return found, "records are glued on one line, of which the original script takes the first"
    if not found or not _THEIR_LATENCY.search(line):
        return found, "a line with a throughput holds no latency, at which the original script stops"
    return found, None


def _speeds(line: bytes) -> tuple[list[Printed], str | None]:
    """The speeds of a line, more than one where records are glued together."""
    if b"SamplesPerSec" not in line:
        return [], None
    found = [(match, parse_number(match["speed"])) for match in _DEEPSPEED.finditer(line)]
    printed = [Printed(_step(match), value) for match, value in found if value is not None and value > 0]
    if any(value == 0 for _, value in found):
        return printed, "a line states 0 samples a second; it is left out, and the original script counts it"
    if not printed:
        return [], "a line with SamplesPerSec holds no speed, at which the original script stops or writes NaN"
    if not line.endswith(b"\n"):
        return printed, "the last line has no end, at which the original script stops"
    if line[found[-1][0].end() :].strip() or len(found) > 1:
        return printed, (
            "a line goes on after its SamplesPerSec, as DeepSpeed's do since 0.4; the original script stops there"
        )
    return printed, None


def _step(match: re.Match[bytes]) -> int | None:
    step = match["old"] or match["new"]
    return int(step) if step else None
