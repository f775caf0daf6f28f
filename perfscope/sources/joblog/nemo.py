"""NeMo: a progress bar (1.x) or a line an iteration (2.x), both with ``train_step_timing in s``.

The bar prints four significant digits, so that ``global_step=2e+3`` has lost its last three; there the bar's own
counter is the number of the step.
"""

from __future__ import annotations

import re

from perfscope.constants import NS_PER_S
from perfscope.sources.joblog.draft import (
    Draft,
    Hit,
    Rule,
    label_of,
    mention,
    number,
)
from perfscope.sources.joblog.series import Record

SOURCE = "train_step_timing"

_CELLS = re.compile(rb"(consumed_samples|global_batch_size|reduced_train_loss)(?:=|: )([-+\d.eE]+)")
_CONSUMED = "nemo consumed"


def _bar(draft: Draft, hit: Hit) -> None:
    """The bar counts anew in every epoch."""
    total, epoch = int(hit["total"]), int(hit["epoch"] or 0)
    step = draft.through_epochs(SOURCE, epoch, int(hit["step"]), total)
    _add(draft, hit, step, max(total, step), hit["seconds"])


def _line(draft: Draft, hit: Hit) -> None:
    """``global_step`` counts from 0: the first line is the first step."""
    _add(draft, hit, int(hit["step"]) + 1, int(hit["total"]) + 1, hit["seconds"])


def _add(draft: Draft, hit: Hit, step: int, total: int, seconds_text: bytes) -> None:
    draft.evidence["nemo"] += 1
    seconds = number(seconds_text)
    if seconds is None or seconds <= 0:
        draft.unreadable += 1
        return
    cells = {key: number(text) for key, text in _CELLS.findall(hit[0])}
    batch = cells.get(b"global_batch_size")
    record = Record(
        iteration=step,
        wall_ns=round(seconds * NS_PER_S),
        samples=None if batch is None else int(batch),
        loss=cells.get(b"reduced_train_loss"),
    )
    if not draft.of(SOURCE).add(record, label_of(hit.text, hit.line)):
        return
    draft.note("train_iterations", total, "records")
    consumed = cells.get(b"consumed_samples")
    if batch is None and consumed is not None and step > 0 and consumed % step == 0 and b"e+" not in hit[0]:
        draft.note("gbs", int(consumed / step), "records")


RULES = (
    Rule(
        b"train_step_timing in s=",
        re.compile(
            rb"(?:Epoch (?P<epoch>\d+):[^\n|]*\|[^\n|]*)?\| *(?P<step>\d+)/(?P<total>\d+) \[.*?"
            rb"train_step_timing in s=(?P<seconds>[^,\]\s]+)"
        ),
        _bar,
    ),
    Rule(
        b"train_step_timing in s:",
        re.compile(
            rb"iteration \d+/(?P<total>\d+) \|.*?global_step: (?P<step>\d+) .*?"
            rb"train_step_timing in s: (?P<seconds>[^\s|]+)"
        ),
        _line,
    ),
    Rule(b"[NeMo I ", re.compile(rb"\[NeMo I "), mention("nemo")),
)
