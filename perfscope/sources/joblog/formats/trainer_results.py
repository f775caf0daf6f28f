"""What the scripts of the Trainer save at the end: ``train_results.json``, and ``all_results.json`` with evaluations.

    "epoch": 3.0, "train_loss": 0.1191, "train_runtime": 80.2776, "train_samples_per_second": 23.917,
    "train_steps_per_second": 1.495

Each key stands on a line of its own. All are of the whole run, warm-up, evaluations and saves included, the loss is a
mean, too. Both speeds are planned samples and steps over the run time: too high where training ended early or went on
from a checkpoint, which the file does not say. The steps follow where the rounded speed leaves a single integer. Until
2021 ``train_samples_per_second`` was steps a second: without ``train_steps_per_second`` it is taken for what the
samples of an epoch, ``train_samples``, and the epochs allow. Other keys are of evaluations, and are not read.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from math import ceil, floor

from perfscope.constants import NS_PER_S
from perfscope.sources.joblog.log_format import Format, FormatState, LineMatch, Rule
from perfscope.sources.joblog.records import Record
from perfscope.sources.joblog.run_end import NO_END
from perfscope.sources.joblog.text import parse_number

RUN = "train_results.json's train_runtime / steps"

_FRAMEWORK = "hf-trainer-results"
_KEYS = (
    b"train_runtime",
    b"train_samples_per_second",
    b"train_steps_per_second",
    b"train_loss",
    b"train_samples",
    b"epoch",
)
_HALF_A_PRINTED_DIGIT = 0.0005
_PRECISE_STEPS_PER_S = 0.05  # half a printed digit is 1 %
_SAME = 0.02
_OTHER = 1.5


@dataclass(slots=True)
class _State(FormatState):
    """The figures, by name."""

    figures: dict[bytes, float] = field(default_factory=dict)


def _on_figure(state: _State, line: LineMatch) -> None:
    value = parse_number(line[2])
    if value is not None and value > 0:
        state.figures[line[1]] = value
    else:
        state.log.unreadable += 1


def _close(state: _State) -> None:
    log, figures = state.log, state.figures
    runtime_s = figures.get(b"train_runtime")
    if runtime_s is None or log.frameworks != {_FRAMEWORK}:
        return
    steps_per_s, samples_per_s = _speeds(figures, runtime_s)
    _explain(state)
    if _ends_early(figures, samples_per_s, runtime_s):
        log.add_remark("steps-unknown", NO_END)
        log.set_fact("finished_runs", 1, "log")
        return
    steps = None if steps_per_s is None else _steps(steps_per_s, runtime_s)
    record = Record(steps, samples_per_s=samples_per_s)
    if steps is not None:
        log.set_fact("train_iterations", steps, "records")
        record.wall_ns = round(runtime_s / steps * NS_PER_S)
    elif steps_per_s is not None and steps_per_s >= _PRECISE_STEPS_PER_S:
        log.set_fact("unnumbered_runs", 1, "records")
        record.wall_ns = round(NS_PER_S / steps_per_s)
        record.wall_resolution_ns = round(2 * _HALF_A_PRINTED_DIGIT / steps_per_s**2 * NS_PER_S)
    else:
        log.add_remark("steps-unknown", "train_runtime is known, the number of steps is not: no step time")
        log.set_fact("finished_runs", 1, "log")
        if samples_per_s is not None:
            log.set_fact("stated_samples_per_s", samples_per_s, "log")
        return
    series = log.series_of(RUN)
    series.add(record)
    series.stated_interval = steps


def _explain(state: _State) -> None:
    figures = state.figures
    loss = f", train_loss {figures[b'train_loss']:.4g} the mean loss" if b"train_loss" in figures else ""
    epochs = f" of {figures[b'epoch']:.4g} epochs" if b"epoch" in figures else ""
    text = f"the figures are of all planned steps{epochs}, warm-up, evaluations and saves included{loss}"
    state.log.add_remark("whole-run", text)


def _speeds(figures: dict[bytes, float], runtime_s: float) -> tuple[float | None, float | None]:
    """Steps and samples a second, where the file states them or contradicts all other meanings."""
    steps_per_s, speed = figures.get(b"train_steps_per_second"), figures.get(b"train_samples_per_second")
    if steps_per_s is not None or speed is None:
        return steps_per_s, speed
    samples = figures.get(b"train_samples", 0) * figures.get(b"epoch", 0)
    if abs(speed * runtime_s - samples) <= _SAME * samples:
        return None, speed
    return (speed, None) if samples > _OTHER * speed * runtime_s else (None, None)


def _ends_early(figures: dict[bytes, float], samples_per_s: float | None, runtime_s: float) -> bool:
    """Whether the samples of the speed are of planned epochs that were not reached."""
    samples = figures.get(b"train_samples", 0) * figures.get(b"epoch", 0)
    return samples_per_s is not None and samples_per_s * runtime_s > _OTHER * samples > 0


def _steps(steps_per_s: float, runtime_s: float) -> int | None:
    """The only integer that has this speed when it is rounded; None where there are several."""
    least = max(ceil((steps_per_s - _HALF_A_PRINTED_DIGIT) * runtime_s), 1)
    most = floor((steps_per_s + _HALF_A_PRINTED_DIGIT) * runtime_s)
    return most if least == most else None


FORMAT = Format(
    framework=_FRAMEWORK,
    state=_State,
    rules=tuple(
        Rule(
            b'"' + key + b'": ',
            rb'^[^\n"{}]{0,200}"(' + key + rb')": ([\d.eE+-]{1,30}),?[ \t]*$',
            _on_figure,
            identifies=key == b"train_runtime",
        )
        for key in _KEYS
    ),
    sources=(RUN,),
    close=_close,
    name="hf-trainer",
)
