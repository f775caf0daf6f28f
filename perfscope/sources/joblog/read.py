"""Read one log, whatever wrote it: every framework's lines are looked for in every block, and what was found tells."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from perfscope.sources.joblog import (
    arguments,
    composer,
    deepspeed,
    events,
    gluon_nlp,
    hf_trainer,
    megatron,
    nemo,
    oneflow,
    rules,
    swift,
    timers,
    torchtitan,
    torchtune,
)
from perfscope.sources.joblog.draft import Draft
from perfscope.sources.joblog.finish import finish
from perfscope.sources.joblog.pieces import Part, take_apart
from perfscope.sources.joblog.series import KEPT
from perfscope.sources.joblog.text import blocks, is_plain, plain
from perfscope.tables.joblog import JobLog

_RULES = (
    *arguments.RULES,
    *events.RULES,
    *timers.RULES,
    *deepspeed.RULES,
    *hf_trainer.RULES,
    *torchtitan.RULES,
    *torchtune.RULES,
    *gluon_nlp.RULES,
    *nemo.RULES,
    *composer.RULES,
    *oneflow.RULES,
)


_LARGE = 1 << 25
_KEPT_OF_LARGE = 1 << 9


def read_log(path: Path) -> JobLog:
    """Read one log.

    Raises:
        SourceError: It cannot be read, or is no text.
    """
    size = path.stat().st_size if path.is_file() else 0
    draft = Draft(_KEPT_OF_LARGE if size > _LARGE else KEPT)
    done = 0
    for text in blocks(path):
        _read_block(draft, text)
        done += len(text)
        if _is_long(draft) and size - done > _LARGE and is_plain(path):
            for part in take_apart(path, done, size):
                _read_part(draft, part)
            break
    gluon_nlp.close(draft)
    composer.close(draft)
    deepspeed.close(draft)
    return finish(draft, path)


def _is_long(draft: Draft) -> bool:
    known = draft.series.get(megatron.SOURCE)
    return known is not None and known.is_full


def _read_block(draft: Draft, text: bytes) -> None:
    parts = swift.split(text) if _is_long(draft) else None
    _read_part(draft, text if parts is None else parts)


def _read_part(draft: Draft, part: Part) -> None:
    if isinstance(part, bytes):
        text = plain(part)
        rules.play(draft, [*rules.find(text, _RULES), *megatron.read(text)])
        return
    usual, done = part.plain, 0
    # A block of nothing but plain lines leaves its last one alone.
    others = rules.find(part.rest, _RULES) if len(part.origin) > 1 else []
    found = sorted([*others, *megatron.read(part.rest)], key=lambda item: item[0])
    for at, rule, hit in found:
        line = int(np.searchsorted(part.rest_start, at, "right")) - 1
        before = int(np.searchsorted(usual.start, part.origin[line]))
        megatron.add_plain(draft, usual, done, before)
        done = max(done, before)
        rule.act(draft, hit)
    megatron.add_plain(draft, usual, done, len(usual.start))
