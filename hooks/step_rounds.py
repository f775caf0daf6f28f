"""Groups the steps of several optimizers into training steps.

An optimizer that trains alone makes a training step each time it steps, and so do optimizers that train one after the
other, each for several steps. Where several take turns, a training step is the whole round. It ends with the optimizer
that steps least often, if this one recurs at least once in 20 steps of others.

An event is numbered by the optimizer that stepped, and waits until it is clear which training step it belongs to. One
optimizer alone never waits. Nothing here knows of frameworks or of time.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import groupby

#: An optimizer that steps less than once in so many steps of others does not end rounds.
LARGEST_ROUND = 20
#: Steps after which a rhythm that was not recognized counts as none.
_LONGEST_WAIT = 3 * (LARGEST_ROUND + 1)
_FEWEST_ROUNDS = 3


class StepRounds:
    """Which events complete training steps.

    Attributes:
        boundary: The optimizer that ends rounds; None where each event of an optimizer is a step.
        is_settled: Whether it is clear what the next events mean; until then, no profiler window may begin.
    """

    def __init__(self, is_finished: Callable[[int], bool]) -> None:
        self.boundary: int | None = None
        self.is_settled = False
        self._is_finished = is_finished
        self._waiting: list[int] = []
        #: Events of a round that was never completed; they join the next step.
        self._leftover = 0
        self._single: int | None = None
        self._members: set[int] = set()
        self._longest = 0

    @property
    def waits(self) -> bool:
        """Whether events wait because nobody can tell yet what they are; those of a running round do not count."""
        return bool(self._waiting) and (self.boundary is None or not self._members.issuperset(self._waiting))

    def is_alone(self, optimizer: int) -> bool:
        """Whether each event of an optimizer is a step, and none waits."""
        return self.boundary is None and optimizer == self._single and not self._waiting

    def on_event(
        self, optimizer: int, *, continues: bool = False, awaits_others: bool = False, may_wait: bool = True
    ) -> tuple[int, ...]:
        """An optimizer stepped; the sizes of the training steps that are now complete, in events, the oldest first.

        Args:
            optimizer: Which one.
            continues: Nothing was done since the event before it: both belong to one update.
            awaits_others: Another optimizer was built and has not stepped yet.
            may_wait: False inside a profiler window, which cannot wait.
        """
        if self.is_alone(optimizer) and not awaits_others:
            return (1,)
        self._waiting.append(optimizer)
        sizes = self._advance_round(optimizer, continues=continues) if self.boundary is not None else None
        if sizes is not None:
            return self._complete(sizes)
        is_one_update = continues and len(set(self._waiting)) == len(self._waiting)
        if awaits_others and may_wait and (is_one_update or len(self._waiting) <= LARGEST_ROUND):
            self.is_settled = False
            return ()
        return self._complete(self._decide(optimizer, continues=continues, may_wait=may_wait))

    def finish(self) -> tuple[int, ...]:
        """Training ended: the sizes of the steps that the waiting events make; a round that is not whole is none."""
        waiting, rarest = self._waiting, self._rarest_recurring()
        if self.boundary is not None:
            sizes = (1,) * len(waiting) if len(waiting) > 2 * self._longest else ()
        else:
            sizes = (1,) * len(waiting) if rarest is None else _rounds(waiting, rarest)
        return self._complete(sizes)

    def _complete(self, sizes: tuple[int, ...]) -> tuple[int, ...]:
        del self._waiting[: sum(sizes)]
        self.is_settled = self.boundary is not None or not self._waiting
        if sizes and self._leftover:
            sizes = (sizes[0] + self._leftover, *sizes[1:])
            self._leftover = 0
        return sizes

    def _decide(self, optimizer: int, *, continues: bool, may_wait: bool) -> tuple[int, ...]:
        """The steps that the waiting events make; none where that is not clear."""
        waiting = self._waiting
        others = {other for other in waiting if other != optimizer}
        if not others:
            return self._decide_alone(optimizer, may_wait=may_wait and not continues)
        if all(self._is_finished(other) for other in others):
            return self._release(optimizer)
        if continues and len(others) + 1 == len(waiting) and self._single is None:
            self._begin_rounds(optimizer)  # all optimizers stepped, one right after the other
            return (len(waiting),)
        boundary = find_boundary(waiting)
        if boundary is not None:
            self._begin_rounds(boundary)
            return _rounds(waiting, boundary)
        return self._decide_without_rounds(optimizer)

    def _decide_alone(self, optimizer: int, *, may_wait: bool) -> tuple[int, ...]:
        """One optimizer stepped, which takes over from the one before if that is gone or if it steps twice."""
        before = self._single
        if before is None or before == optimizer or self._is_finished(before) or len(self._waiting) > 1:
            return self._release(optimizer)
        if not may_wait:
            self._begin_rounds(before)
        return ()

    def _decide_without_rounds(self, optimizer: int) -> tuple[int, ...]:
        waiting, runs = self._waiting, _runs(self._waiting)
        last = runs[-1][1]
        if last > LARGEST_ROUND and optimizer == self._single:
            self._begin_rounds(optimizer)  # the others step too rarely
            return (len(waiting) - last + 1, *(1,) * (last - 1))
        if min(length for _, length in runs) > 1 or last > LARGEST_ROUND or len(waiting) > _LONGEST_WAIT:
            return self._release(optimizer)  # they train one after the other, or without a rhythm
        return ()

    def _advance_round(self, optimizer: int, *, continues: bool) -> tuple[int, ...] | None:
        """The step that an event completes while rounds are made; None where rounds end with it."""
        waiting = self._waiting
        if optimizer == self.boundary:
            self._longest = max(self._longest, len(waiting) - 1)
            return (len(waiting),)
        if self.boundary is not None and self._is_finished(self.boundary):
            self.boundary = None
            if len(waiting) - 1 <= 2 * self._longest:  # the last round was not completed
                self._leftover += len(waiting) - 1
                del waiting[:-1]
            return None
        if continues:
            self._members.add(optimizer)
            self._longest = max(self._longest, len(waiting))
            return ()
        if len(waiting) > max(LARGEST_ROUND, 2 * self._longest):
            self.boundary = None
            return None
        boundary = find_boundary(waiting) if self._members.isdisjoint(waiting) else None
        if boundary is None:
            return ()
        self._begin_rounds(boundary)
        return _rounds(waiting, boundary)

    def _release(self, optimizer: int) -> tuple[int, ...]:
        self._single = optimizer
        return (1,) * len(self._waiting)

    def _begin_rounds(self, boundary: int) -> None:
        self.boundary, self._single = boundary, None
        self._members = {boundary, *self._waiting}
        self._longest = max(_gaps(self._waiting, boundary)[1:], default=len(set(self._waiting)) - 1)

    def _rarest_recurring(self) -> int | None:
        """The optimizer that ends rounds if these events are all; None where none steps again after another one."""
        runs = _runs(self._waiting)
        if len(runs) == len({optimizer for optimizer, _ in runs}):
            return None
        return _rarest(self._waiting)


def find_boundary(events: Sequence[int]) -> int | None:
    """The optimizer that ends the rounds of some events; None where no rounds are recognized, or only of runs."""
    kinds = set(events)
    size = len(kinds)
    if size == 1:
        return None
    blocks = [events[start : start + size] for start in range(0, len(events), size)]
    if len(blocks) >= _FEWEST_ROUNDS and all(set(block) == kinds and len(block) == size for block in blocks):
        return events[size - 1]  # every optimizer steps once in a round, in any order
    return _find_repeated_boundary(events, len(kinds)) or _find_irregular_boundary(events)


def _find_repeated_boundary(events: Sequence[int], kinds: int) -> int | None:
    """The rarest optimizer of a round that is repeated: twice from the first event on, else three times."""
    for length in range(kinds, min(LARGEST_ROUND + 1, len(events) // 2) + 1):
        first, last = events[:length], events[-length:]
        if events[length:] == events[:-length]:
            repeated = first
        elif [*last] * _FEWEST_ROUNDS == [*events[-_FEWEST_ROUNDS * length :]]:
            repeated = last
        else:
            continue
        if len(set(repeated)) == kinds:
            boundary = _rarest(repeated)
            return boundary if _is_isolated([*repeated] * 2, boundary) else None
    return None


def _find_irregular_boundary(events: Sequence[int]) -> int | None:
    """The rarest optimizer of several that all recur, though not in a fixed rhythm."""
    turns: dict[int, int] = {}
    for optimizer, _ in _runs(events):
        turns[optimizer] = turns.get(optimizer, 0) + 1
    boundary = _rarest(events)
    is_recurring = turns[boundary] >= _FEWEST_ROUNDS and min(turns.values()) > 1 and _is_isolated(events, boundary)
    return boundary if is_recurring and max(_gaps(events, boundary)[1:]) <= LARGEST_ROUND else None


def _rarest(events: Sequence[int]) -> int:
    """The optimizer that stepped least often; of several the one that came last."""
    first = {optimizer: index for index, optimizer in reversed(list(enumerate(events)))}
    return min(first, key=lambda optimizer: (events.count(optimizer), -first[optimizer]))


def _is_isolated(events: Sequence[int], optimizer: int) -> bool:
    return all(length == 1 for runner, length in _runs(events) if runner == optimizer)


def _runs(events: Sequence[int]) -> list[tuple[int, int]]:
    """Optimizers and how often each stepped before the next one did."""
    return [(optimizer, len(list(run))) for optimizer, run in groupby(events)]


def _gaps(events: Sequence[int], boundary: int) -> list[int]:
    """Events of others before each event of one optimizer."""
    ends = [index for index, optimizer in enumerate(events) if optimizer == boundary]
    return [end - start - 1 for start, end in zip([-1, *ends], ends, strict=False)]


def _rounds(events: Sequence[int], boundary: int) -> tuple[int, ...]:
    """The sizes of the rounds that one optimizer ends, and of the steps before the first of them."""
    leading, *gaps = _gaps(events, boundary)
    longest = max(gaps, default=leading)
    alone = max(0, leading - longest) if leading > 2 * longest else 0
    return ((1,) * alone) + tuple(gap + 1 for gap in (leading - alone, *gaps))
