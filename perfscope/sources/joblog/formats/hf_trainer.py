"""Hugging Face Trainer: a start-up block, progress bars, dictionaries of losses, one dictionary at the end.

No line states the time of a step. The bar's rate is a moving average; the run time at the end covers warm-up and the
last partial batch, and its ``train_steps_per_second`` is rounded to three decimals (0.007 has too few digits). Every
node prints the final dictionary. Dictionaries are parsed as text, never evaluated.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from math import ceil

from perfscope.constants import NS_PER_S
from perfscope.sources.joblog.line_fields import parse_number
from perfscope.sources.joblog.log_format import Format, FormatState, StepTimeSource
from perfscope.sources.joblog.record import Record
from perfscope.sources.joblog.rules import LineMatch, Rule

BAR = "the progress bar's moving average"
RUN = "train_runtime / steps"

_START_VALUES = {
    b"Num examples": "examples",
    b"Num Epochs": "epochs",
    b"Instantaneous batch size per device": "mbs",
    b"Total train batch size": "gbs",
    b"Gradient Accumulation steps": "gas",
    b"Total optimization steps": "train_iterations",
}
_GPT2 = {b"n_embd": "hidden", b"n_layer": "layers", b"n_head": "heads", b"n_positions": "seq_len"}
_SETTING = re.compile(rb"(\w+)=(\w+)")
_KEY = re.compile(rb"'(\w+)':\s*'?([^,'}]+)")
_DICTIONARY_REACH = 500
_CLOCK = re.compile(rb"(?:(?:(\d+) days?, )?(\d+):)?(\d+):(\d+(?:\.\d+)?)")
_HALF_A_PRINTED_DIGIT = 0.0005


@dataclass(slots=True)
class _State(FormatState):
    """What is collected over the lines of one run.

    Attributes:
        runtime_s: The run time at the end, of the slowest node.
        samples_per_s, steps_per_s: The speeds at the end, of the slowest node.
        first_loss, last_loss: Of the dictionaries.
        vocabulary: Of the configuration that was printed last.
        bar_length: Steps of the longest progress bar.
    """

    runtime_s: float | None = None
    samples_per_s: float | None = None
    steps_per_s: float | None = None
    first_loss: float | None = None
    last_loss: float | None = None
    vocabulary: int | None = None
    bar_length: int | None = None


def _on_start(state: FormatState, _line: LineMatch) -> None:
    state.log.on_restart()


def _on_start_value(state: FormatState, line: LineMatch) -> None:
    state.log.set_count(_START_VALUES[line[1]], line[2], "log")


def _on_parameters(state: FormatState, line: LineMatch) -> None:
    state.log.set_count("parameters", line[1], "log")


def _on_overridden_config(state: _State, line: LineMatch) -> None:
    """``Overriding config: n_embd=7168,n_layer=40,n_positions=1024``: GPT-2 in another size; its length is the most."""
    log = state.log
    for name, value in _SETTING.findall(line[1]):
        if name in _GPT2:
            log.set_count(_GPT2[name], value, "log")
        elif name == b"gradient_checkpointing":
            log.set_fact("checkpointing", "full" if value.lower() == b"true" else "none", "log")
    if state.vocabulary is not None:
        log.set_fact("vocab", state.vocabulary, "log")


def _on_vocabulary(state: _State, line: LineMatch) -> None:
    state.vocabulary = int(line[1])


def _on_bar(state: _State, line: LineMatch) -> None:
    """A bar without a name whose end is the number of steps; evaluation and data sets draw bars too."""
    step, total, rate = int(line["step"]), int(line["total"]), parse_number(line["rate"])
    if rate is None or rate <= 0:
        return
    if state.bar_length is None or total > state.bar_length:
        state.bar_length = total
        state.log.series.pop(BAR, None)
    elif total != state.bar_length:
        return
    seconds = rate if line["unit"] == b"s/it" else 1 / rate
    state.log.series_of(BAR).add(Record(iteration=step, wall_ns=round(seconds * NS_PER_S)), line.label)


def _on_losses(state: _State, line: LineMatch) -> None:
    """``{'loss': 2.075, 'learning_rate': ..., 'epoch': 0.04}``: the first and the last loss are kept."""
    loss = parse_number(dict(_KEY.findall(line[0])).get(b"loss", b""))
    if loss is not None:
        state.first_loss = loss if state.first_loss is None else state.first_loss
        state.last_loss = loss


def _on_final_dictionary(state: _State, line: LineMatch) -> None:
    """The last dictionary; each node prints one, with nearly the same values."""
    values = {key: parse_number(text) for key, text in _KEY.findall(line[0])}
    _set_runtime(state, values.get(b"train_runtime"))
    _set_speeds(state, values.get(b"train_samples_per_second"), values.get(b"train_steps_per_second"))


def _on_final_block(state: _State, line: LineMatch) -> None:
    """``train_runtime = 0:14:31.66`` of the ``train metrics`` block: hours, minutes, seconds."""
    if line[1] == b"train_samples_per_second":
        _set_speeds(state, parse_number(line[2]), None)
    elif line[1] == b"train_steps_per_second":
        _set_speeds(state, None, parse_number(line[2]))
    elif clock := _CLOCK.fullmatch(line[2].strip()):
        days, hours, minutes, seconds = (float(part or 0) for part in clock.groups())
        _set_runtime(state, ((days * 24 + hours) * 60 + minutes) * 60 + seconds)


def _set_runtime(state: _State, runtime_s: float | None) -> None:
    if runtime_s is not None and runtime_s > 0:
        state.runtime_s = max(runtime_s, state.runtime_s or 0.0)


def _set_speeds(state: _State, samples_per_s: float | None, steps_per_s: float | None) -> None:
    if samples_per_s is not None and samples_per_s > 0:
        state.samples_per_s = min(samples_per_s, state.samples_per_s or samples_per_s)
    if steps_per_s is not None and steps_per_s > 0:
        state.steps_per_s = min(steps_per_s, state.steps_per_s or steps_per_s)


def _close(state: _State) -> None:
    """Make one record of the run time: a mean over all steps."""
    log = state.log
    if "hf-trainer" in log.frameworks:
        _set_replicas(state)
    else:
        log.distrust(BAR)
    if state.runtime_s is None:
        return
    steps = log.count("train_iterations") or _steps_of_bar(state) or _steps_of_batch(state, state.runtime_s)
    if steps is None:
        log.add_remark("steps-unknown", "train_runtime is known, the number of steps is not: no step time")
        return
    if state.first_loss is not None:
        log.set_fact("first_loss", state.first_loss, "records")
    record = Record(steps, round(state.runtime_s / steps * NS_PER_S), samples_per_s=state.samples_per_s)
    record.loss = state.last_loss
    series = log.series_of(RUN)
    series.add(record)
    series.stated_interval = series.last


def _set_replicas(state: _State) -> None:
    """Set the data-parallel size from the batch; it is the number of GPUs, unless other parallelism is stated."""
    log = state.log
    batch, micro, accumulated = (log.count(name) for name in ("gbs", "mbs", "gas"))
    if batch and micro and accumulated and batch % (micro * accumulated) == 0:
        replicas = batch // (micro * accumulated)
        log.set_fact("dp", replicas, "records")
        if not log.has_fact("tp") and not log.has_fact("pp"):
            log.set_fact("gpus", replicas, "records")


def _steps_of_bar(state: _State) -> int | None:
    """The length of the progress bar, where it was drawn to its end."""
    return state.bar_length if state.log.series_of(BAR).last == state.bar_length else None


def _steps_of_batch(state: _State, runtime_s: float) -> int | None:
    """Steps of the global batch size that the examples fill, if the rounded steps a second do not contradict it."""
    batch = state.log.count("gbs")
    if batch is None or state.samples_per_s is None:
        return None
    steps = ceil(round(state.samples_per_s * runtime_s) / batch)
    rounded = state.steps_per_s
    if rounded is not None and abs(steps / runtime_s - rounded) > _HALF_A_PRINTED_DIGIT * 1.01:
        return None
    state.log.set_fact("train_iterations", steps, "records")
    return steps


_RULES: tuple[Rule[_State], ...] = (
    Rule(b"***** Running training *****", re.compile(rb"\*{5} Running training \*{5}"), _on_start),
    *(
        Rule(anchor, re.compile(rb"(" + re.escape(anchor) + rb")[^=\n]*= ([\d,]+)"), _on_start_value)
        for anchor in _START_VALUES
    ),
    Rule(b"Overriding config: ", re.compile(rb"Overriding config: (\S+)"), _on_overridden_config),
    Rule(b'"vocab_size": ', re.compile(rb'"vocab_size": (\d+)'), _on_vocabulary, identifies=False),
    Rule(
        b"it/s",
        re.compile(
            rb"(?:^|\n|\s|%\|[^|\n]*\| )(?P<step>\d+)/(?P<total>\d+) \[[\d:]+<[\d:?]+, +(?P<rate>[\d.]+)(?P<unit>it/s)"
        ),
        _on_bar,
        identifies=False,
    ),
    Rule(
        b"s/it",
        re.compile(
            rb"(?:^|\n|\s|%\|[^|\n]*\| )(?P<step>\d+)/(?P<total>\d+) \[[\d:]+<[\d:?]+, +(?P<rate>[\d.]+)(?P<unit>s/it)"
        ),
        _on_bar,
        identifies=False,
    ),
    Rule(b"'loss':", re.compile(rb"\{[^{}\n]*'loss':[^{}]*\}"), _on_losses, reach=_DICTIONARY_REACH),
    Rule(b"'train_runtime':", re.compile(rb"'train_runtime':[^{}]*\}"), _on_final_dictionary, reach=_DICTIONARY_REACH),
    Rule(
        b"train_",
        re.compile(rb"(train_(?:runtime|samples_per_second|steps_per_second))\s+= +([\d:.]+(?: days?, [\d:.]+)?)"),
        _on_final_block,
    ),
    Rule(
        b"trainable parameters",
        re.compile(rb"Number of trainable parameters = ([\d,]+)"),
        _on_parameters,
        identifies=False,
    ),
)

FORMAT = Format(
    framework="hf-trainer",
    state=_State,
    rules=_RULES,
    sources=(StepTimeSource(RUN), StepTimeSource(BAR)),
    close=_close,
)
