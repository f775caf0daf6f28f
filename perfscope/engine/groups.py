"""Traces that one worker measures one after the other, and whose partials it merges before it sends them.

Of many traces each group gives one answer to the driver, in which kernels by name stand once rather than once a trace:
what the driver receives and merges grows with the groups. A group whose worker is lost is taken apart.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import TypeAlias

from perfscope.engine.registry import Partial
from perfscope.engine.tasks import Measure, MeasuredTrace
from perfscope.engine.windows import TraceFiles

Group: TypeAlias = tuple[TraceFiles, ...]
#: The functions that merge two partials of an analyzer, by its name; None for an analyzer whose partials stay apart.
Mergers: TypeAlias = Mapping[str, Callable[[Partial, Partial], Partial] | None]

#: A group is lost with its worker, and shown as progress when all of it is measured.
_LARGEST = 16
#: So many groups a worker, so that none of them has work for long when the others have none left.
_FEWEST_PER_WORKER = 8


def form_groups(traces: Sequence[TraceFiles], workers: int) -> list[Group]:
    """Groups of neighbours, all traces alone where there are few of them for each worker."""
    size = max(1, min(_LARGEST, len(traces) // (_FEWEST_PER_WORKER * max(1, workers))))
    return [tuple(traces[start : start + size]) for start in range(0, len(traces), size)]


def split(group: Group) -> list[Group]:
    """Each trace of a group alone."""
    return [(files,) for files in group]


def measure_group(group: Group, measure: Measure, mergers: Mergers) -> tuple[MeasuredTrace, ...]:
    """Measure each trace; a partial that can be merged stands in the first answer that had one, merged."""
    return tuple(merge_each(map(measure, group), mergers))


def merge_each(answers: Iterable[MeasuredTrace], mergers: Mergers) -> Iterator[MeasuredTrace]:
    """The answers, which lose what can be merged to the first of them that had such a partial."""
    first: dict[str, MeasuredTrace] = {}
    for measured in answers:
        for name, merge in mergers.items():
            if merge is None or name not in measured.partials:
                continue
            owner = first.setdefault(name, measured)
            if owner is not measured:
                owner.partials[name] = merge(owner.partials[name], measured.partials.pop(name))
        yield measured
