"""ms-swift: the Trainer's dictionaries with a step and a clock, on the console and in ``logging.jsonl``.

    {'loss': 1.47, 'epoch': 0.01, 'global_step/max_steps': '1/94', 'elapsed_time': '2s', 'train_speed(iter/s)': ...

``elapsed_time`` counts whole seconds since the start and runs on through evaluations and saves. ``train_speed`` is a
mean since the start, with its warm-up, and is not used.
"""

from __future__ import annotations

import re

from perfscope.constants import NS_PER_S, S_PER_DAY, S_PER_HOUR, S_PER_MINUTE
from perfscope.sources.joblog.log_format import FormatState, LineMatch, LineRule, LogFormat, ignore_line
from perfscope.sources.joblog.records import Record
from perfscope.sources.joblog.text import parse_number
from perfscope.tables.joblog import Disturbance

SOURCE = "ms-swift's elapsed_time"

_ELAPSED = re.compile(rb"(?:(\d{1,4})d ?)?(?:(\d{1,3})h ?)?(?:(\d{1,3})m ?)?(?:(\d{1,3})s)?")
_CELL = re.compile(
    rb"['\"](loss|elapsed_time|eval_runtime|iteration|global_step/max_steps)['\"]: ['\"]?([^,'\"}\n]{1,40})"
)
_DICTIONARY = rb"\{[^\n{}]{0,3000}?['\"]%s['\"]: [^\n{}]{0,3000}\}"


def _on_dictionary(state: FormatState, line: LineMatch) -> None:
    cells = dict(_CELL.findall(line[0]))
    if b"eval_runtime" in cells:
        state.log.on_disturbance(Disturbance.EVALUATION)
        return
    step, _, total = (cells.get(b"global_step/max_steps") or cells.get(b"iteration") or b"").partition(b"/")
    elapsed = _ELAPSED.fullmatch(cells.get(b"elapsed_time", b"").strip())
    if not step.isdigit() or elapsed is None or not any(elapsed.groups()):
        return
    units = (S_PER_DAY, S_PER_HOUR, S_PER_MINUTE, 1)
    elapsed_s = sum(int(part or 0) * unit for part, unit in zip(elapsed.groups(), units, strict=True))
    state.log.set_count("train_iterations", total, "records")
    record = Record(int(step), loss=parse_number(cells.get(b"loss", b"")))
    state.log.clock(SOURCE).add(record, elapsed_s * NS_PER_S, NS_PER_S, label=line.label)


FORMAT = LogFormat(
    framework="ms-swift",
    state=FormatState,
    rules=(
        LineRule(b"/max_steps", _DICTIONARY % b"global_step/max_steps", _on_dictionary, begin=(b"{",)),
        LineRule(b"train_speed(s/it)", _DICTIONARY % b"iteration", _on_dictionary, begin=(b"{",)),
        LineRule(b"[INFO:swift]", b"", ignore_line),
    ),
    sources=(SOURCE,),
)
