"""gluon-nlp's BERT pre-training: one line a step *and rank*, which a job of 32 GPUs prints 32 times.

    INFO:root:03:21:22 [step 100]  mlm_loss=7.4  throughput=19.3K tks/s  lr=0.0000500 time=0.21, latency=212.6 ms/batch

The time of a step is the median of its ranks' latencies, a mean over the log interval; the number of ranks is counted.
"""

from __future__ import annotations

import re
from collections import OrderedDict
from statistics import median

from perfscope.constants import NS_PER_MS
from perfscope.sources.joblog.draft import (
    Draft,
    Hit,
    Rule,
    number,
)
from perfscope.sources.joblog.series import Record

SOURCE = "latency, the median of the ranks"

_OPEN = "gluon steps"
_STEPS_OPEN = 8
_TOKENS = re.compile(rb"throughput=([\d.]+)K tks/s")
_LOSS = re.compile(rb"mlm_loss=(\S+)")


def _step(draft: Draft, hit: Hit) -> None:
    draft.evidence["gluon-nlp"] += 1
    latency = number(hit["latency"])
    line = hit.text[hit.line : hit.end]
    tokens, loss = _TOKENS.search(line), _LOSS.search(line)
    if latency is None or latency <= 0:
        draft.unreadable += 1
        return
    steps = draft.scratch.setdefault(_OPEN, OrderedDict())
    assert isinstance(steps, OrderedDict)
    ranks = steps.setdefault(int(hit["step"]), [])
    ranks.append((latency, number(tokens[1]) if tokens else None, number(loss[1]) if loss else None))
    if len(steps) > _STEPS_OPEN:
        close(draft, keep=_STEPS_OPEN)


def close(draft: Draft, keep: int = 0) -> None:
    """Turn steps that all ranks have printed into records."""
    steps = draft.scratch.get(_OPEN)
    if not isinstance(steps, OrderedDict):
        return
    while len(steps) > keep:
        step, ranks = steps.popitem(last=False)
        tokens = [rank[1] for rank in ranks if rank[1] is not None]
        record = Record(
            iteration=step,
            wall_ns=round(median(rank[0] for rank in ranks) * NS_PER_MS),
            tokens_per_s_per_gpu=median(tokens) * 1000 if tokens else None,
            loss=ranks[0][2],
        )
        if draft.of(SOURCE).add(record):
            known = draft.scratch.get("gluon ranks", 0)
            ranks_seen = max(len(ranks), known if isinstance(known, int) else 0)
            draft.scratch["gluon ranks"] = ranks_seen
            draft.note("gpus", ranks_seen, "records")


RULES = (Rule(b"ms/batch", re.compile(rb"\[step (?P<step>\d+)\].*?latency=(?P<latency>[^\s,]+) ms/batch"), _step),)
