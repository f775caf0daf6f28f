"""The files that the Trainer keeps, ``trainer_state.json``, and LLaMA-Factory on top of it, ``trainer_log.jsonl``.

    "log_history": [ { "epoch": 1.0, "loss": 0.9, "step": 10 }, { "train_runtime": 183.4, "step": 94 } ], ...
    {"current_steps": 10, "total_steps": 1000, "loss": 1.2, "elapsed_time": "0:00:34", "throughput": 1234.5, ...}

The state has no time but ``train_runtime``, written once at the end: over the steps since the last start
(``run_end.py``), warm-up and evaluations included. The step of that start is not in the file. The log's clock counts
whole seconds since the start and runs on through evaluations. Its throughput is a mean since the start, so tokens a
second follow from ``total_tokens`` instead.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from perfscope.constants import NS_PER_S, S_PER_DAY, S_PER_HOUR, S_PER_MINUTE
from perfscope.sources.joblog.log_format import FormatState, LineMatch, LineRule, LogFormat, aside, ignore_line, sets
from perfscope.sources.joblog.records import Record
from perfscope.sources.joblog.run_end import EVALUATIONS, RunEnd, is_part_of_losses, steps_of_speed
from perfscope.sources.joblog.text import parse_number
from perfscope.tables.joblog import Disturbance

CLOCK = "trainer_log.jsonl's elapsed_time"
RUN = "trainer_state.json's train_runtime / steps"

_ELAPSED = re.compile(rb"(?:(\d{1,4}) days?, )?(\d{1,3}):(\d\d):(\d\d)")


@dataclass(slots=True)
class _State(FormatState):
    """Which file it is, and what the state says of the whole run."""

    is_log: bool = False
    runtime_s: float | None = None
    samples_per_s: float | None = None
    steps_per_s: float | None = None
    mean_loss: float | None = None
    has_evaluations: bool = False
    steps: int | None = None
    max_steps: int | None = None
    micro_batch: int | None = None
    first_loss: float | None = None
    last_loss: float | None = None


def _on_line(state: _State, line: LineMatch) -> None:
    state.is_log, state.name = True, "llama-factory"
    elapsed = _ELAPSED.match(line["elapsed"])
    if elapsed is None:
        state.log.unreadable += 1
        return
    if line["evaluation"]:
        state.log.on_disturbance(Disturbance.EVALUATION)
        return
    days, hours, minutes, seconds = (int(part or 0) for part in elapsed.groups())
    elapsed_s = days * S_PER_DAY + hours * S_PER_HOUR + minutes * S_PER_MINUTE + seconds
    state.log.set_count("train_iterations", line["total"], "records")
    tokens = parse_number(line["tokens"]) if line["tokens"] else None
    record = Record(int(line["step"]), loss=parse_number(line["loss"]) if line["loss"] else None)
    state.log.clock(CLOCK).add(record, elapsed_s * NS_PER_S, NS_PER_S, tokens=None if tokens is None else int(tokens))


def _on_loss(state: _State, line: LineMatch) -> None:
    value = parse_number(line[1])
    state.first_loss = value if state.first_loss is None else state.first_loss
    state.last_loss = value


#: Figures of the state by their keys, and what of ``_State`` has them.
_FIGURES = {
    b"train_runtime": "runtime_s",
    b"train_samples_per_second": "samples_per_s",
    b"train_steps_per_second": "steps_per_s",
    b"train_loss": "mean_loss",
    b"global_step": "steps",
    b"max_steps": "max_steps",
    b"train_batch_size": "micro_batch",
}
_COUNTS = ("steps", "max_steps", "micro_batch")


def _on_figure(state: _State, line: LineMatch) -> None:
    value, name = parse_number(line[2]), _FIGURES[line[1]]
    if value is not None and value > 0:
        setattr(state, name, int(value) if name in _COUNTS else value)


def _close(state: _State) -> None:
    log = state.log
    if _FRAMEWORK not in log.frameworks or state.is_log:
        return
    log.drop_fact("gbs")  # ``train_batch_size`` is the global batch of DeepSpeed's configuration, here that of a device
    for fact, value in (
        ("train_iterations", state.max_steps),
        ("mbs", state.micro_batch),
        ("first_loss", state.first_loss),
    ):
        if value is not None:
            log.set_fact(fact, value, "log")
    if state.steps is not None:
        _add_run(state, state.steps)


def _add_run(state: _State, reached: int) -> None:
    log = state.log
    record = Record(reached, loss=state.last_loss)
    steps: int | str = reached
    if state.runtime_s is not None:
        of_speed = steps_of_speed(state.steps_per_s, state.runtime_s)
        is_part = is_part_of_losses(state.mean_loss, state.first_loss, state.last_loss)
        end = RunEnd(of_speed, state.max_steps, None if is_part else 0, (reached, reached))
        steps = end.count_steps()
        record.samples_per_s = end.samples_per_s(state.samples_per_s, steps)
        if isinstance(steps, int):
            record.wall_ns = round(state.runtime_s / steps * NS_PER_S)
        else:
            log.add_remark("steps-unknown", steps)
        if state.has_evaluations:
            log.add_remark("evaluations", EVALUATIONS)
    series = log.series_of(RUN)
    series.add(record)
    series.stated_interval = steps if isinstance(steps, int) else reached


_FRAMEWORK = "hf-trainer-files"

_RULE = LineRule(
    b'{"current_steps": ',
    rb'\{"current_steps": (?P<step>\d{1,12}), "total_steps": (?P<total>\d{1,12}), '
    rb'(?:"loss": (?P<loss>[^,]{1,30}), )?(?P<evaluation>"eval_loss": [\d.]{1,30}, )?[^\n{}]{0,400}?'
    rb'"elapsed_time": "(?P<elapsed>[^"\n]{1,40})"(?:[^\n{}]{0,200}?"total_tokens": (?P<tokens>\d{1,18}))?',
    _on_line,
    begin=(b'{"current_steps": ',),
)

FORMAT = LogFormat(
    framework=_FRAMEWORK,
    state=_State,
    rules=(
        _RULE,
        LineRule(b'"log_history": [', b"", ignore_line),
        aside(b'"loss": ', rb'^ {4,8}"loss": ([\d.eE+-]{1,30})', _on_loss),
        aside(b'"eval_runtime": ', rb'^ {2,8}"eval_runtime": ', sets("has_evaluations")),
        *(
            aside(b'"' + name + b'": ', rb'^ {2,8}"(' + name + rb')": ([\d.eE+-]{1,30})', _on_figure)
            for name in _FIGURES
        ),
    ),
    sources=(CLOCK, RUN),
    close=_close,
    name="hf-trainer",
)
