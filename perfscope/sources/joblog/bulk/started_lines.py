"""Many records at once, among which a process may have restarted."""

from __future__ import annotations

from itertools import pairwise

import numpy as np

from perfscope.sources.joblog.bulk.record_lines import add_evenly
from perfscope.sources.joblog.series.iteration_series import IterationSeries
from perfscope.sources.joblog.splitting.split_block import PlainLines


def add_starts(series: IterationSeries, plain: PlainLines, first: int, last: int, *, after: int) -> None:
    """Add rows as ``add_evenly`` does; where their numbers do not grow, the process has restarted.

    ``after`` is the number of the record before.
    """
    numbers = np.asarray(plain.iteration[first:last], np.int64)
    begins = (first + np.flatnonzero(np.diff(numbers, prepend=after) <= 0)).tolist()
    starts = set(begins)
    for begin, end in pairwise(dict.fromkeys((first, *begins, last))):
        if begin in starts:
            series.on_restart()
        add_evenly(series, plain, begin, end)
