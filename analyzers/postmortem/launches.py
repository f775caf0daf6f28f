"""What ranks launched last, where nobody was left to dump the Flight Recorder: the calls of Python, in its words.

A library gives up where ranks disagree, and the launcher ends the others at once. The calls that a rank makes from
Python, and its backward passes, are then the same on all ranks up to the one that differs.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import replace

from perfscope.tables.postmortem import CollectiveCall, RankState, RecorderDump
from perfscope.wire.launched_calls import BACKWARD, LaunchedCall

#: A group that is not told apart from others.
_OTHERS = "others"


def with_launched_calls(ranks: Mapping[int, RankState]) -> dict[int, RankState]:
    """The ranks with dumps of what they launched, from the first step on that all remember; empty where one has none.

    Backward passes count in the order of the calls of every group: what one rank does instead of a collective may be
    one.
    """
    launched = {rank: state.death.launched for rank, state in ranks.items() if state.death is not None}
    if set(launched) != set(ranks) or not all(launched.values()):
        return {}
    first = max(calls[0].step for calls in launched.values())
    return {
        rank: replace(state, dump=_to_dump([call for call in launched[rank] if call.step >= first]))
        for rank, state in ranks.items()
    }


def _to_dump(launched: list[LaunchedCall]) -> RecorderDump:
    numbers: Counter[str] = Counter()
    groups = sorted({_name(call) for call in launched if call.operation != BACKWARD}) or ["0"]
    calls = []
    for place, call in enumerate(launched):
        for group in groups if call.operation == BACKWARD else [_name(call)]:
            numbers[group] += 1
            calls.append(_to_call(call, group, numbers[group], place, is_over=place < len(launched) - 1))
    return RecorderDump(tuple(calls), {})


def _name(call: LaunchedCall) -> str:
    return _OTHERS if call.group is None else str(call.group)


def _to_call(call: LaunchedCall, group: str, sequence: int, place: int, *, is_over: bool) -> CollectiveCall:
    return CollectiveCall(
        group=group,
        description="",
        sequence=sequence,
        is_p2p=False,
        operation=call.operation,
        input_sizes=((call.elements,),) if call.elements else (),
        output_sizes=(),
        dtypes=(),
        created_ns=place,
        is_started=None,
        is_completed=is_over,
    )
