"""Read one log, whatever wrote it: every framework's lines are looked for in every block, and what was found tells."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
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
)
from perfscope.sources.joblog.draft import Draft
from perfscope.sources.joblog.finish import finish
from perfscope.sources.joblog.series import KEPT
from perfscope.sources.joblog.text import blocks, plain
from perfscope.tables.joblog import JobLog

_RULES = (
    *arguments.RULES,
    *events.RULES,
    *timers.RULES,
    *deepspeed.RULES,
    *hf_trainer.RULES,
    *torchtitan.RULES,
    *gluon_nlp.RULES,
    *nemo.RULES,
    *composer.RULES,
    *oneflow.RULES,
)


_THREADS = 2
_LARGE = 1 << 25
_KEPT_OF_LARGE = 1 << 9


def read_log(path: Path) -> JobLog:
    """Read one log.

    Raises:
        SourceError: It cannot be read, or is no text.
    """
    is_large = path.is_file() and path.stat().st_size > _LARGE
    draft = Draft(_KEPT_OF_LARGE if is_large else KEPT)
    for text, parts in _apart(draft, blocks(path)):
        _read_block(draft, text, parts)
    gluon_nlp.close(draft)
    composer.close(draft)
    return finish(draft, path)


def _apart(draft: Draft, texts: Iterator[bytes]) -> Iterator[tuple[bytes, swift.Split | None]]:
    """Blocks, taken apart beside the reading once the log turns out to be long: NumPy leaves the interpreter free."""
    with ThreadPoolExecutor(_THREADS) as pool:
        waiting: deque[tuple[bytes, Future[swift.Split | None] | None]] = deque()
        for text in texts:
            known = draft.series.get(megatron.SOURCE)
            is_long = known is not None and known.is_full
            waiting.append((text, pool.submit(swift.split, text) if is_long else None))
            while waiting and (waiting[0][1] is None or len(waiting) > _THREADS):
                yield _result(*waiting.popleft())
        while waiting:
            yield _result(*waiting.popleft())


def _result(text: bytes, split: Future[swift.Split | None] | None) -> tuple[bytes, swift.Split | None]:
    return text, None if split is None else split.result()


def _read_block(draft: Draft, text: bytes, parts: swift.Split | None) -> None:
    if parts is None:
        text = plain(text)
        rules.play(draft, [*rules.find(text, _RULES), *megatron.read(text)])
        return
    usual, done = parts.plain, 0
    found = sorted([*rules.find(parts.rest, _RULES), *megatron.read(parts.rest)], key=lambda item: item[0])
    for at, rule, hit in found:
        line = int(np.searchsorted(parts.rest_start, at, "right")) - 1
        before = int(np.searchsorted(usual.start, parts.origin[line]))
        megatron.add_plain(draft, usual, done, before)
        done = max(done, before)
        rule.act(draft, hit)
    megatron.add_plain(draft, usual, done, len(usual.start))
