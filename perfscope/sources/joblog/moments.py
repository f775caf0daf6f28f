"""The moments at which iterations ended, from the times that logs print in front of their lines.

Megatron-LM, DeepSpeed, OpenMMLab and most others print ``[2026-11-21 00:26:15,116]`` or ``2026-11-21 00:26:15``. A line
without a time has that of the last line that has one.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import pairwise
from pathlib import Path

import numpy as np

from perfscope.constants import NS_PER_S
from perfscope.errors import SourceError
from perfscope.sources.joblog.text import parse_timestamp_ns
from perfscope.tables.joblog import Disturbance, JobLog, LoggedMoment, LoggedMoments

#: No iteration is shorter.
_SHORTEST_STEP_NS = 1000


class MomentsBuilder:
    """When the records of a log were printed, and the evaluations, saves and numbers of saves between them."""

    def __init__(self) -> None:
        self.events: list[Disturbance | int] = []
        self._first_ns: int | None = None
        self._now_ns: int | None = None
        self._last_ns: int | None = None
        self._records: list[tuple[int | None, int]] = []

    def read_times(self, lines: bytes) -> None:
        """Read the times of some lines; what is added from here on has the last one."""
        for line in lines.split(b"\n"):
            stamp_ns = parse_timestamp_ns(line, 0, len(line))
            if stamp_ns is not None:
                self._now_ns = self._last_ns = stamp_ns
                self._first_ns = stamp_ns if self._first_ns is None else self._first_ns

    def end(self) -> None:
        """The log has ended: records that are concluded from all of it were printed at no moment."""
        self._now_ns = None

    def mark(self) -> int:
        """The number of a record that is added now."""
        self._records.append((self._now_ns, len(self.events)))
        return len(self._records) - 1

    def table(self, log: JobLog, marked: Sequence[int], *, are_times_apart: bool) -> LoggedMoments:
        """The moments of a log's records, whose numbers among those that were marked are ``marked``.

        ``are_times_apart`` says that records state times without what else happens between them. Fails without moments.
        """
        moments = list(self._moments(log, marked, are_times_apart=are_times_apart))
        if self._first_ns is None or self._last_ns is None or not moments:
            raise SourceError(log.path, "has no line with a time and the number of an iteration")
        stated_ns = int(np.ma.getdata(log.iterations.wall_ns)[~np.ma.getmaskarray(log.iterations.wall_ns)].sum())
        if len({moment.t_ns for moment in moments}) == 1 < len(moments) and stated_ns > NS_PER_S:
            raise SourceError(log.path, "has no times on the lines of its iterations")
        name = Path(log.path).name
        possible, damage = _without_leaps(moments, name, log.number("train_iterations"))
        damage += _describe_clock(possible, name)
        last_ns = max(self._last_ns, *(moment.t_ns for moment in possible))
        return LoggedMoments(log.path, self._first_ns, last_ns, tuple(possible), log.number("gpus"), tuple(damage))

    def _moments(self, log: JobLog, marked: Sequence[int], *, are_times_apart: bool) -> Iterator[LoggedMoment]:
        rows = log.iterations
        wall_ns = np.ma.array(rows.wall_ns, mask=np.ma.getmaskarray(rows.wall_ns) | (rows.disturbed != "")).tolist()
        seen = 0
        for number, iteration, stated_ns in zip(marked, rows.iteration.tolist(), wall_ns, strict=True):
            t_ns, end = self._records[number]
            if t_ns is None or iteration is None:
                continue
            events = self.events[seen:end]
            saves = [log.saves[event] for event in events if isinstance(event, int)]
            yield LoggedMoment(
                t_ns=t_ns,
                iteration=iteration,
                stated_ns=stated_ns if are_times_apart else None,
                saved_ns=sum(save.wall_ns or 0 for save in saves),
                has_evaluation=Disturbance.EVALUATION in events,
                has_save=bool(saves) or Disturbance.SAVE in events,
            )
            seen = max(seen, end)


def _without_leaps(
    moments: Sequence[LoggedMoment], name: str, last: int | None
) -> tuple[list[LoggedMoment], list[str]]:
    """The moments without those behind the last iteration, or of more iterations than there was time for."""
    possible: list[LoggedMoment] = []
    damage: list[str] = []
    for moment in moments:
        is_behind = last is not None and moment.iteration > last
        if possible and not is_behind:
            before = possible[-1]
            gap_ns = max(moment.t_ns - before.t_ns, NS_PER_S)
            is_behind = (moment.iteration - before.iteration) * _SHORTEST_STEP_NS > gap_ns
        if is_behind:
            damage.append(f"{name}: iteration {moment.iteration} cannot be, and its line is left out")
        else:
            possible.append(moment)
    return possible, damage


def _describe_clock(moments: Sequence[LoggedMoment], name: str) -> list[str]:
    """That the clock goes back, where it does: the time across is unknown and counts as none."""
    back_ns = [before.t_ns - after.t_ns for before, after in pairwise(moments) if after.t_ns < before.t_ns]
    if not back_ns:
        return []
    times = "once" if len(back_ns) == 1 else f"{len(back_ns)} times"
    return [f"{name}: its clock goes back {times}, by up to {max(back_ns) / NS_PER_S:.0f} s: the parts are doubtful"]
