"""Hugging Face Trainer: a start-up block, progress bars, dictionaries of losses, one dictionary at the end.

No line states the time of a step. The run time at the end covers the steps since the last start, with warm-up,
evaluations and the last partial batch (``run_end.py``). ``train_steps_per_second`` has three decimals (0.007 has too
few digits) or four digits. Every node prints the final dictionary. A bar alone proves nothing, because every tool draws
them; it is read where other lines are the Trainer's. Dictionaries are parsed as text, never evaluated.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from math import ceil

from perfscope.constants import GIB, NS_PER_S
from perfscope.sources.joblog.log_format import FormatState, LineMatch, LineRule, LogFormat, aside, counts, sets
from perfscope.sources.joblog.progress_bars import BAR as BAR_PATTERN
from perfscope.sources.joblog.progress_bars import ProgressBars
from perfscope.sources.joblog.records import Record
from perfscope.sources.joblog.resolve import MOST_APART
from perfscope.sources.joblog.run_end import (
    EVALUATIONS,
    Range,
    RunEnd,
    goes_on,
    is_part_of_losses,
    steps_of_epoch,
    steps_of_speed,
)
from perfscope.sources.joblog.text import LARGEST, parse_clock_s, parse_number, parse_numbers
from perfscope.tables.joblog import Disturbance

BAR = "the progress bar's clock"
RUN = "train_runtime / steps"

_FRAMEWORK = "hf-trainer"

_START_VALUES = {
    b"Num examples": "examples",
    b"Instantaneous batch size per device": "mbs",
    b"Total train batch size": "gbs",
    b"Gradient Accumulation steps": "gas",
    b"Total optimization steps": "train_iterations",
}
#: The evaluation prints the others, too.
_OF_ONE_RUN = {"gbs", "train_iterations"}
_KEY = re.compile(rb"'(\w+)':\s*'?([^,'}]+)")
_LOSS = re.compile(rb"'loss':\s*'?([^,'}]+)")
_QUOTED = b"'train_runtime': '"
_EPOCH = re.compile(rb"'epoch':\s*'?([\d.]{1,20})")
_CLOCK = re.compile(rb"(?:(?:(\d+) days?, )?(\d+):)?(\d+):(\d+(?:\.\d+)?)")
_PRECISE_STEPS_PER_S = 0.05  # half a printed digit is 1 %


@dataclass(slots=True)
class _State(FormatState):
    """What is collected over the lines of one run; run time and speeds are those of the slowest node.

    Attributes:
        imitates: Another framework prints the Trainer's lines.
        begin: The step of the last start; None where no line states a start.
        epochs: The first two that differ, of the dictionaries.
        is_short: Figures are printed with four digits, as transformers 5 does.
        has_evaluations: There was one since the last start, before the end.
    """

    bars: ProgressBars = field(default_factory=ProgressBars)
    imitates: bool = False
    runtime_s: float | None = None
    samples_per_s: float | None = None
    steps_per_s: float | None = None
    first_loss: float | None = None
    last_loss: float | None = None
    mean_loss: float | None = None
    begin: int | None = None
    examples: int | None = None
    epoch_steps: int | None = None
    epochs: list[float] = field(default_factory=list)
    last_epoch: float | None = None
    is_short: bool = False
    has_evaluations: bool = False


def _on_start(state: _State, _line: LineMatch) -> None:
    state.begin, state.examples, state.epoch_steps = 0, None, None
    state.has_evaluations &= state.runtime_s is not None
    state.log.on_restart()


def _on_resume(state: _State, line: LineMatch) -> None:
    """A run time that was stated before is of an earlier start."""
    state.begin = int(line[1])
    state.runtime_s = state.samples_per_s = state.steps_per_s = None
    state.has_evaluations = False


def _on_start_value(state: _State, line: LineMatch) -> None:
    name = _START_VALUES[line[1]]
    before = state.log.count(name)
    state.log.set_count(name, line[2], "log")
    after = state.log.count(name)
    if name == "train_iterations":  # evaluations print their examples, but not this line
        state.examples = state.log.count("examples")
    if state.runtime_s is not None and name in _OF_ONE_RUN and before is not None and after != before:
        what = line[1].decode().removeprefix("Total ")
        state.log.on_two_jobs(f"the log is of two trainings, with {before} and {after} {what}")


def _on_evaluation(state: _State, _line: LineMatch) -> None:
    state.bars.on_disturbance(Disturbance.EVALUATION)
    state.has_evaluations |= state.runtime_s is None  # those after the end are in no run time


def _on_save(state: _State, _line: LineMatch) -> None:
    state.bars.on_disturbance(Disturbance.SAVE)


def _on_memory(state: FormatState, line: LineMatch) -> None:
    """Figures of one process, in axolotl's dictionaries."""
    size, is_peak = parse_number(line[2]), line[1] == b"max"
    state.log.add_memory(GIB, allocated=size if is_peak else None, used=None if is_peak else size)


def _on_bar(state: _State, line: LineMatch) -> None:
    state.bars.add(int(line["total"]), int(line["step"]), parse_clock_s(line["clock"]))


def _on_losses(state: _State, line: LineMatch) -> None:
    """``{'loss': 2.075, ..., 'epoch': 0.04}``; the first and the last loss, and the first epochs, are kept."""
    text = line[0]
    epoch, loss = _EPOCH.search(text), _LOSS.search(text)
    if b"'epoch':" in text:
        state.log.frameworks.add(_FRAMEWORK)
        state.bars.on_losses()
    number = parse_number(epoch[1]) if epoch and len(state.epochs) <= 1 else None
    if number is not None and (not state.epochs or number > state.epochs[0]):
        state.epochs.append(number)
    value = parse_number(loss[1]) if loss else None
    state.first_loss = value if state.first_loss is None else state.first_loss
    state.last_loss = state.last_loss if value is None else value


def _on_final_dictionary(state: _State, line: LineMatch) -> None:
    """The last dictionary; each node prints one, with nearly the same values."""
    values = parse_numbers(_KEY.findall(line[0]))
    state.is_short = _QUOTED in line[0]
    state.last_epoch = values.get(b"epoch", state.last_epoch)
    _set_runtime(state, values.get(b"train_runtime"))
    state.mean_loss = values.get(b"train_loss", state.mean_loss)
    state.samples_per_s = _slowest(state.samples_per_s, values.get(b"train_samples_per_second"))
    state.steps_per_s = _slowest(state.steps_per_s, values.get(b"train_steps_per_second"))


def _slowest(before: float | None, speed: float | None) -> float | None:
    return before if speed is None or speed <= 0 else min(speed, before or speed)


def _on_final_block(state: _State, line: LineMatch) -> None:
    """``train_runtime = 0:14:31.66`` of the ``train metrics`` block: hours, minutes, seconds."""
    if line[1] == b"train_samples_per_second":
        state.samples_per_s = _slowest(state.samples_per_s, parse_number(line[2]))
    elif line[1] == b"train_steps_per_second":
        state.steps_per_s = _slowest(state.steps_per_s, parse_number(line[2]))
    elif clock := _CLOCK.fullmatch(line[2].strip()):
        days, hours, minutes, seconds = (float(part or 0) for part in clock.groups())
        _set_runtime(state, ((days * 24 + hours) * 60 + minutes) * 60 + seconds)


def _set_runtime(state: _State, runtime_s: float | None) -> None:
    if runtime_s is None or not 0 < runtime_s < LARGEST:
        return
    low, high = sorted((runtime_s, state.runtime_s or runtime_s))
    if high > MOST_APART * low:
        state.log.on_two_jobs(f"the log is of two trainings, of {low:g} and {high:g} s")
    state.runtime_s = high


def _close(state: _State) -> None:
    """Make records of the bar, and one of the run time: a mean over all steps."""
    log = state.log
    if state.imitates:
        log.frameworks.discard(_FRAMEWORK)
    if _FRAMEWORK not in log.frameworks:
        return
    _set_replicas(state)
    total = state.bars.training_total(log.count("train_iterations"))
    if total is not None:
        state.bars.add_records(total, log.series_of(BAR))
    if state.first_loss is not None:
        log.set_fact("first_loss", state.first_loss, "records")
    if state.runtime_s is not None:
        _add_run(state, state.runtime_s, total)


def _add_run(state: _State, runtime_s: float, bar_length: int | None) -> None:
    log, end, speed = state.log, _find_end(state, runtime_s, bar_length), state.steps_per_s
    if state.has_evaluations:
        log.add_remark("evaluations", EVALUATIONS)
    steps = end.count_steps()
    samples_per_s = end.samples_per_s(state.samples_per_s, steps)
    record = Record(samples_per_s=samples_per_s, loss=state.mean_loss if state.last_loss is None else state.last_loss)
    if isinstance(steps, int):
        record.iteration = (end.begin or 0) + steps
        record.wall_ns = round(runtime_s / steps * NS_PER_S)
        if end.planned is None:
            log.set_fact("train_iterations", steps, "records")
    elif end.is_speed_of_done and speed is not None and speed >= _PRECISE_STEPS_PER_S:
        record.wall_ns = round(NS_PER_S / speed)
        log.set_fact("unnumbered_runs", 1, "records")
    else:
        log.add_remark("steps-unknown", str(steps))
        log.set_fact("finished_runs", 1, "log")
        if samples_per_s is not None:
            log.set_fact("stated_samples_per_s", samples_per_s, "log")
        return
    log.add(RUN, record, None, stated_interval=steps if isinstance(steps, int) else None)


def _find_end(state: _State, runtime_s: float, bar_length: int | None) -> RunEnd:
    begin, planned = state.begin, state.log.count("train_iterations")
    if bar_length is not None:
        drawn, last = state.bars.last_start(bar_length)
        reached: Range | None = (last, last)
        begin = drawn if begin is None else begin
    else:
        reached = _reached(state)
        begin = 0 if begin is None and not _goes_on(state) else begin
    of_speed = steps_of_speed(state.steps_per_s, runtime_s, is_short=state.is_short)
    return RunEnd(of_speed, bar_length if planned is None else planned, begin, reached)


def _reached(state: _State) -> Range | None:
    batch = state.log.count("gbs")
    if state.last_epoch is None:
        return None
    if state.epoch_steps is not None:
        return steps_of_epoch(state.last_epoch, state.epoch_steps, state.epoch_steps)
    if not batch or state.examples is None:
        return None
    return steps_of_epoch(state.last_epoch, state.examples // batch, ceil(state.examples / batch))


def _goes_on(state: _State) -> bool:
    """Whether training began before the lines of the log."""
    if is_part_of_losses(state.mean_loss, state.first_loss, state.last_loss):
        return True
    return len(state.epochs) > 1 and goes_on(*state.epochs)


def _set_replicas(state: _State) -> None:
    """Set the data-parallel size from the batch; it is the number of GPUs, unless other parallelism is stated."""
    log = state.log
    batch, micro, accumulated = (log.count(name) for name in ("gbs", "mbs", "gas"))
    if batch and micro and accumulated and batch % (micro * accumulated) == 0:
        replicas = batch // (micro * accumulated)
        log.set_fact("dp", replicas, "records")
        if not log.has_fact("tp") and not log.has_fact("pp"):
            log.set_fact("gpus", replicas, "records")


_RULES: tuple[LineRule[_State], ...] = (
    LineRule(b"***** Running training *****", rb"\*{5} Running training \*{5}", _on_start),
    *(
        LineRule(anchor, rb"(" + re.escape(anchor) + rb")[^=\n]{0,100}+= ([\d,]+)", _on_start_value, begin=(anchor,))
        for anchor in _START_VALUES
    ),
    LineRule(
        b"ing training from ",
        rb"ing training from (?:checkpoint with epoch \d+ and )?global[ _]step (\d{1,12})",
        _on_resume,
    ),
    aside(
        b"Num update steps per epoch = ",
        rb"Num update steps per epoch = (\d[\d,]{0,15})",
        lambda state, line: setattr(state, "epoch_steps", int(line[1].replace(b",", b""))),
    ),
    aside(b"'eval_runtime':", b"", _on_evaluation),
    aside(b"***** Running Evaluation", rb"\*{5} Running Evaluation \*{5}", _on_evaluation),
    aside(b"Saving model checkpoint to", b"", _on_save),
    aside(b"[axolotl.", b"", sets("name", "axolotl")),
    aside(
        b"'memory/", rb"'memory/(max|device)_(?:mem_)?(?:allocated|reserved) ?\([gG]i[bB]\)': ([\d.]{1,12})", _on_memory
    ),
    aside(b"%|", BAR_PATTERN, _on_bar),
    aside(b"'loss':", rb"\{(?>[^{}\n]*?'loss':)[^{}]*+\}", _on_losses, spans_lines=True, begin=(b"{",)),
    # PaddleNLP's trainer and diffusers' scripts print the same start-up block.
    aside(b"[    INFO] - ", b"", sets("imitates")),
    aside(b"interval_runtime: ", b"", sets("imitates")),
    aside(b"Num batches each epoch = ", b"", sets("imitates")),
    LineRule(
        b"'train_runtime':",
        rb"'train_runtime':[^{}]*+\}",
        _on_final_dictionary,
        spans_lines=True,
        begin=(b"'train_runtime':",),
    ),
    *(
        LineRule(name, rb"(" + name + rb")\s+= +([\d:.]+(?: days?, [\d:.]+)?)", _on_final_block)
        for name in (b"train_runtime", b"train_samples_per_second", b"train_steps_per_second")
    ),
    aside(b"trainable parameters", rb"Number of trainable parameters = ([\d,]+)", counts("parameters")),
)

FORMAT = LogFormat(framework=_FRAMEWORK, state=_State, rules=_RULES, sources=(RUN, BAR), close=_close)
