"""Paddle: PaddleNLP's Trainer, and the training scripts of PaddleNLP, PaddleOCR, PaddleMIX and PaddleSeg.

    [    INFO] - loss: 2.0, learning_rate: 2.1e-06, global_step: 20, interval_runtime: 26.3106, ...
    [2024/08/06 18:03:31] INFO: epoch: [1/2], global_step: 100, loss: 69.3, avg_batch_cost: 0.18023 s, ...
    2021-03-30 06:56:04 [INFO] [TRAIN] epoch: 1, iter: 40/500, loss: 1.8769, batch_cost: 0.3483, reader_cost: ...

Both are means since the line before. The Trainer's clock runs on through evaluations and saves. Its samples a second
are of the whole job. Versions of 2022 print three decimals and divide the samples of one step by the time of all steps:
these are not used. ``ips`` and ``avg_samples`` of the scripts are of one card. PaddleOCR also prints where an epoch
ends, and divides by the usual steps between two lines even where there were fewer: such a line has no time.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass

from perfscope.constants import MIB, NS_PER_S
from perfscope.sources.joblog.log_format import Format, FormatState, LineMatch, Rule, disturbs
from perfscope.sources.joblog.records import Record
from perfscope.sources.joblog.text import parse_number, parse_numbers
from perfscope.tables.joblog import Disturbance

TRAINER = "PaddleNLP's interval_runtime / steps"
SCRIPT = "Paddle's batch cost"

_CELL = re.compile(rb"(?<![\w_])(\w{1,50})[:=] ?([\d.eE+-]{1,30})")
_HALF = 0.01
_DECIMALS_OF_2022 = 3
_USUAL_STEPS = 10  # between two lines of PaddleOCR


@dataclass(slots=True)
class _State(FormatState):
    """What tells lines of PaddleOCR over fewer steps than usual: the epoch of the last one, and the most samples."""

    epoch: int | None = None
    samples: float = 0.0

    def has_usual_steps(self, step: int, epoch: int | None, samples: float | None) -> bool:
        """Whether the mean of a line is over the usual steps: it is inside of an epoch, and has all samples."""
        before, self.epoch = self.epoch, epoch or self.epoch
        self.samples = max(self.samples, samples or 0.0)
        if epoch is not None and (before != epoch if before is not None else step % _USUAL_STEPS != 0):
            return False
        return samples == self.samples and samples == int(samples) if samples is not None else not self.samples


def _on_interval(state: FormatState, line: LineMatch) -> None:
    """Steps of the interval are run time x steps a second, a whole number."""
    texts = dict(_CELL.findall(line[0]))
    cells = {name: parse_number(text) for name, text in texts.items()}
    step, seconds, speed = (
        cells.get(key) for key in (b"global_step", b"interval_runtime", b"interval_steps_per_second")
    )
    if step is None or not seconds or not speed or seconds <= 0 or speed <= 0:
        state.log.unreadable += 1
        return
    samples_per_s = cells.get(b"interval_samples_per_second")
    steps = round(seconds * speed)
    is_whole = steps > 0 and abs(seconds * speed - steps) <= max(_HALF * steps, _HALF)
    wall_s = seconds / steps if is_whole else 1 / speed
    record = Record(int(step), round(wall_s * NS_PER_S), samples_per_s=samples_per_s, loss=cells.get(b"loss"))
    record.tokens_per_s_per_gpu = cells.get(b"interval_tokens_per_second_per_device")
    is_of_2022 = _is_rounded(texts)
    if is_of_2022 and not state.log.has_fact("gbs"):
        record.samples_per_s = None  # where the batch is known, it is compared
    settings = {"stated_interval": steps} if is_whole else {}
    state.log.add(TRAINER, record, line, clock_runs_on=True, **settings)
    if samples_per_s is not None and is_whole and not is_of_2022:
        batch = round(samples_per_s / speed)
        if batch > 0 and abs(samples_per_s / speed - batch) < _HALF * batch and not state.log.has_fact("gbs"):
            state.log.set_fact("gbs", batch, "records")


def _is_rounded(texts: Mapping[bytes, bytes]) -> bool:
    """Whether the rates of an interval have three decimals, as in 2022: its samples were then those of one step."""
    rates = (texts.get(name, b"") for name in (b"interval_samples_per_second", b"interval_steps_per_second"))
    return all(len(rate.partition(b".")[2]) <= _DECIMALS_OF_2022 for rate in rates)


def _on_batch_cost(state: _State, line: LineMatch) -> None:
    log, cells, step = state.log, parse_numbers(_CELL.findall(line["cells"])), line["global"] or line["iter"]
    record = log.timed(line["seconds"], NS_PER_S, int(step) if step else None, loss=cells.get(b"loss"))
    if record is None:
        return
    epoch, samples = _EPOCH.search(line[0]), cells.get(b"avg_samples")
    has_usual_steps = not step or state.has_usual_steps(int(step), int(epoch[1]) if epoch else None, samples)
    if not has_usual_steps:
        record.wall_ns = None
    log.add(SCRIPT, record, line)
    if has_usual_steps and samples is not None and samples == int(samples) and samples > 0:
        log.set_fact("mbs", int(samples), "records")
    log.add_memory(MIB, reserved=cells.get(b"max_mem_reserved"), allocated=cells.get(b"max_mem_allocated"))


_EPOCH = re.compile(rb"epoch: \[(\d{1,9})/")

FORMAT = Format(
    framework="paddle",
    state=_State,
    rules=(
        Rule(
            b"interval_runtime: ",
            rb"(?<![\w'])loss: [^\n]{0,300}?global_step: [^\n]{0,400}?interval_runtime: [^\n]{0,400}",
            _on_interval,
            begin=(b"loss: ",),
        ),
        Rule(
            b"batch_cost",
            rb"(?P<cells>(?:epoch: \[\d{1,9}/\d{1,9}\], )?"
            rb"(?:global[_ ]step:? ?(?P<global>\d{1,12})|\biter(?:=|: )(?P<iter>\d{1,12})/\d{1,12})[^\n]{0,300}?"
            rb"batch_cost[:=] ?(?P<seconds>[\d.]{1,20})(?: sec\b| s\b|,)[^\n]{0,300})",
            _on_batch_cost,
            begin=(b"epoch: [", b"global_step", b"global step", b"iter=", b"iter: "),
        ),
        Rule(
            b"***** Running Evaluation",
            rb"\*{5} Running Evaluation \*{5}",
            disturbs(Disturbance.EVALUATION),
            identifies=False,
        ),
        Rule(
            b"] - Saving model checkpoint to",
            rb"Saving model checkpoint to",
            disturbs(Disturbance.SAVE),
            identifies=False,
        ),
    ),
    sources=(TRAINER, SCRIPT),
)
