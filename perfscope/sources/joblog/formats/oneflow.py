"""OneFlow's benchmarks: BERT, image classification, wide and deep.

BERT and CNN lines end in the time since 1970; their own throughput is a mean over an interval that starts at the first
line. Steps are timed by those stamps, as the benchmark's own script does; the lines of 2020 have none. Wide and deep
prints a latency, whose first value is warm-up.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from perfscope.constants import NS_PER_MS, NS_PER_S
from perfscope.sources.joblog.log_format import Format, FormatState, LineMatch, Rule, counts, disturbs
from perfscope.sources.joblog.records import Record
from perfscope.sources.joblog.step_times import EpochCounter, add_dated
from perfscope.sources.joblog.text import parse_number
from perfscope.tables.joblog import Disturbance

STAMPS = "time stamps of OneFlow's lines"
LATENCY = "OneFlow's latency"

_SETTINGS = {b"batch_size_per_device": "mbs", b"gpu_num_per_node": "gpus_per_node", b"num_nodes": "nodes"}


@dataclass(slots=True)
class _State(FormatState):
    """The epochs of the lines that count by them."""

    epochs: EpochCounter = field(default_factory=EpochCounter)


def _on_stamped_step(state: _State, line: LineMatch) -> None:
    stamp_ns, step = None, int(line["step"])
    if line["stamp"]:
        seconds, _, fraction = line["stamp"].partition(b".")
        stamp_ns = int(seconds) * NS_PER_S + int(fraction[:9].ljust(9, b"0"))
    if "epoch" in line.match.re.groupindex:
        step = state.epochs.add(int(line["epoch"]), step)
    record = Record(iteration=step, loss=parse_number(line["loss"]), samples_per_s=parse_number(line["speed"]))
    add_dated(state.log, STAMPS, line, record, stamp_ns)


def _on_latency(state: FormatState, line: LineMatch) -> None:
    loss = parse_number(line["loss"])
    record = state.log.timed(line["latency"], NS_PER_MS, int(line["step"]), loss=loss, digits=False)
    if record is not None:
        state.log.add(LATENCY, record, line)


FORMAT = Format(
    framework="oneflow",
    state=_State,
    rules=(
        Rule(
            b", total_loss: ",
            rb"step: (?P<step>\d{1,15}), total_loss: (?P<loss>[^,\s]+),[^\n]{0,300}? "
            rb"throughput: (?P<speed>\S+) (?P<stamp>\d{9,}(?:\.\d+)?)",
            _on_stamped_step,
            begin=(b"step: ",),
        ),
        Rule(
            b"samples/s: ",
            rb"epoch (?P<epoch>\d{1,15}), iter (?P<step>\d{1,15}), loss: (?P<loss>[^,\s]+),[^\n]{0,300}?"
            rb"samples/s: (?P<speed>\S+)(?: (?P<stamp>\d{9,}(?:\.\d+)?))?",
            _on_stamped_step,
            begin=(b"epoch ",),
        ),
        Rule(
            b"latency(ms): ",
            rb"iter: (?P<step>\d{1,15})/\d+, loss: (?P<loss>[^,\s]+),[^\n]{0,300}?latency\(ms\): (?P<latency>[^\s|]+)",
            _on_latency,
            begin=(b"iter: ",),
        ),
        Rule(
            b"validation: epoch ",
            rb"validation: epoch \d+, iter ",
            disturbs(Disturbance.EVALUATION),
            identifies=False,
        ),
        *(
            Rule(
                anchor,
                rb"(?:^|:)\s{0,99}" + anchor + rb" = (\d{1,15})",
                counts(fact),
                identifies=False,
                span=(100, 60),
            )
            for anchor, fact in _SETTINGS.items()
        ),
    ),
    sources=(LATENCY, STAMPS),
)
