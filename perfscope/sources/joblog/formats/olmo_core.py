"""OLMo and OLMo-core: a heading a step, then one indented line a figure.

    2025-01-09 18:01:02.123 ... console_logger:76 rank0 INFO [step=10/1000,epoch=1,eta=0:10:00]
        train/CE loss=10.94
        throughput/device/TPS=16,384
        throughput/device/BPS=0.2500

``BPS`` is steps a second since the step before; evaluations and saves lie outside of it only in part. ``TPS`` is
tokens a second of a device. Figures have four or five digits.
"""

from __future__ import annotations

import re

from perfscope.constants import GIB, NS_PER_S
from perfscope.sources.joblog.log_format import FormatState, LineMatch, LineRule, LogFormat
from perfscope.sources.joblog.records import Record
from perfscope.sources.joblog.text import parse_numbers

SOURCE = "1 / OLMo-core's BPS"

#: Before the spaces of a figure stands what a launcher writes before every line.
_PREFIX = rb"(?:\(\w{1,40} pid=\d+[^)\n]{0,40}\))?[^\n=]{0,40}?[ \t]{2,16}"
_NO_HEADING = rb"(?![^\n]{0,300}\[step=)"
#: Other lines may come between a step's figures: warnings, and those of another process.
_BETWEEN = rb"(?:\n" + _NO_HEADING + rb"[^\n]{0,300}(?=\n)){0,2}?"
_FIGURE = re.compile(
    rb"^" + _PREFIX + rb"(train/CE ?[lL]oss|train/CrossEntropyLoss|gpu_memory/GPU reserved mem \(GiB\)|"
    rb"throughput/device/(?:TPS|BPS|tokens_per_second|batches_per_second))=([\d,.eE+-]{1,20})[ \t]*$",
    re.MULTILINE,
)
_SPEEDS = (b"throughput/device/BPS", b"throughput/device/batches_per_second")
_TOKENS = (b"throughput/device/TPS", b"throughput/device/tokens_per_second")


def _on_step(state: FormatState, line: LineMatch) -> None:
    figures = parse_numbers(_FIGURE.findall(line["figures"]))
    speed = next((figures[name] for name in _SPEEDS if figures.get(name)), None)
    tokens = next((figures[name] for name in _TOKENS if figures.get(name)), None)
    if speed is None and tokens is None:
        return
    losses = [value for name, value in figures.items() if name.startswith(b"train/")]
    record = Record(
        iteration=int(line["step"]),
        wall_ns=None if speed is None else round(NS_PER_S / speed),
        tokens_per_s_per_gpu=tokens,
        loss=losses[0] if losses else None,
    )
    state.log.add(SOURCE, record, line.label, stated_interval=1)
    state.log.set_count("train_iterations", line["total"], "records")
    state.log.add_memory(GIB, reserved=figures.get(b"gpu_memory/GPU reserved mem (GiB)"))


FORMAT = LogFormat(
    framework="olmo",
    state=FormatState,
    rules=(
        LineRule(
            b"[step=",
            rb"\[step=(?P<step>\d{1,12})/(?P<total>\d{1,12}|\?\?\?)(?:,epoch=\d{1,6}[^\]\n]{0,60})?\][ \t]*"
            rb"(?P<figures>(?:" + _BETWEEN + rb"\n" + _NO_HEADING + _PREFIX + rb"[^\n=]{1,120}=[^\n]{1,40})+)",
            _on_step,
            spans_lines=True,
            begin=(b"[step=",),
        ),
    ),
    sources=(SOURCE,),
)
