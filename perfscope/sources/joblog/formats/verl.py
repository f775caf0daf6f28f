"""verl: a line a step with hundreds of figures, ``name:value`` between `` - ``.

    (TaskRunner pid=16292) step:2 - actor/pg_loss:0.001 - timing_s/gen:74.020 - timing_s/step:96.551 - ...

``timing_s/step`` is the whole step, generation of responses included; also a test of the policy and a checkpoint,
where ``timing_s/testing`` and ``timing_s/save_checkpoint`` are in the line. ``perf/throughput`` counts tokens of
prompts and responses a second and GPU. The SFT trainer prints ``train/time(s)``.
"""

from __future__ import annotations

import re

from perfscope.constants import GIB, NS_PER_S
from perfscope.sources.joblog.log_format import FormatState, LineMatch, LineRule, LogFormat
from perfscope.sources.joblog.text import parse_number
from perfscope.tables.joblog import Disturbance, Save

SOURCE = "verl's time of a step"

_TIMES = (b"timing_s/step", b"perf/time_per_step", b"train/time(s)")
_CELL = re.compile(
    rb" - ((?:timing_s|perf|actor|train|critic)/[\w()/@-]{1,60}):(?:np\.(?:float|int)\d\d\()?([\d.eE+-]{1,30})"
)
_PARTS = (b"gen", b"reward", b"old_log_prob", b"ref", b"values", b"adv", b"update_critic", b"update_actor")
_NEEDED = (
    *_TIMES,
    *(b"timing_s/" + part for part in (*_PARTS, b"testing", b"save_checkpoint")),
    b"perf/throughput",
    b"perf/max_memory_allocated_gb",
    b"perf/max_memory_reserved_gb",
    b"train/loss",
)


def _on_step(state: FormatState, line: LineMatch) -> None:
    texts = dict(_CELL.findall(line["cells"]))
    cells = {name: parse_number(texts[name]) for name in _NEEDED if name in texts}
    name, log = next((name for name in _TIMES if cells.get(name)), None), state.log
    record = (
        None if name is None else log.timed(texts[name], NS_PER_S, int(line["step"]), loss=cells.get(b"train/loss"))
    )
    if record is None:
        return
    log.series_of(SOURCE).clock_runs_on = True
    save_s = cells.get(b"timing_s/save_checkpoint")
    if cells.get(b"timing_s/testing"):
        log.on_disturbance(Disturbance.EVALUATION)
    elif save_s:
        log.on_disturbance(Disturbance.SAVE)
    record.tokens_per_s_per_gpu = cells.get(b"perf/throughput")
    log.add(SOURCE, record, line.label)
    if save_s and not log.saves.is_last(record.iteration):
        log.saves.add(Save(record.iteration, round(save_s * NS_PER_S), "timer", None))
    for part in _PARTS:
        part_s = cells.get(b"timing_s/" + part)
        if part_s is not None and part_s >= 0:
            log.add_timer(part.decode(), round(part_s * NS_PER_S))
    allocated, reserved = cells.get(b"perf/max_memory_allocated_gb"), cells.get(b"perf/max_memory_reserved_gb")
    log.add_memory(GIB, allocated=allocated, reserved=reserved)


_LINE = rb"(?<!\S)step:(?P<step>\d{1,9})(?P<cells> - [^\n]{1,16000})"

FORMAT = LogFormat(
    framework="verl",
    state=FormatState,
    rules=(LineRule(b" - timing_s/", _LINE, _on_step), LineRule(b" - train/time(s):", _LINE, _on_step)),  # that of SFT
    sources=(SOURCE,),
)
