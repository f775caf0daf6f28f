"""What each device event does, by its category, its name and the profiler's metadata."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from perfscope.sources.traces.records import FILL, KERNEL, MTIA
from perfscope.tables.columns import Int64
from perfscope.tables.kernel_classes import classify, classify_copy
from perfscope.tables.trace import ABSENT, Int8, Int32, Work, distinct

_MTIA_EVENT, _MTIA_COPY = "event_", "dma_request"


def is_work(category: int, name: str) -> bool:
    """Whether an event is work: queues of MTIA also show when they record events and wait for them."""
    return category != MTIA or not name.startswith(_MTIA_EVENT)


def classify_work(names: Sequence[str], name: Int32, category: Int64, collective: Int64) -> Int8:
    """What device events do.

    Args:
        names: All names.
        name: Of each event the index of its name.
        category: KERNEL, COPY, FILL or MTIA.
        collective: Of each event the number of its metadata, or ABSENT.
    """
    of_kernel, of_copy, of_mtia = (np.zeros(len(names), np.int8) for _ in range(3))
    for number in distinct(name):
        text = names[number]
        of_kernel[number], of_copy[number] = classify(text), classify_copy(text)
        of_mtia[number] = Work.COPY if text == _MTIA_COPY else of_kernel[number]
    work: Int8 = np.where(category == KERNEL, of_kernel[name], of_copy[name])
    work[category == FILL] = Work.COPY
    work[category == MTIA] = of_mtia[name][category == MTIA]
    work[(category == KERNEL) & (collective != ABSENT) & (work != Work.FUSED)] = Work.COMMUNICATION
    return work
