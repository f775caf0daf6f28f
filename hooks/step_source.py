"""Decides what ends a training step: the framework of highest priority, and which of its objects.

An optimizer that trains alone makes a training step each time it steps, and so do optimizers that train one after the
other, each for several steps. Where several take turns, a training step is the whole round. The first round shows the
optimizer that steps least often, and this one ends all rounds.

A step of one of several optimizers waits until it is clear which training step it belongs to. One alone never waits.
"""

from __future__ import annotations

import threading
import weakref
from itertools import groupby
from typing import TYPE_CHECKING, Any

from perfscope.frameworks import STEP_BOUNDARIES
from perfscope.hooks.guard import value_or_none
from perfscope.hooks.selection import EVERY

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from typing import TypeAlias

    #: Reads an object; None where it is gone.
    _Reference: TypeAlias = Callable[[], object]

#: An optimizer that steps less than once in so many steps of others does not end rounds.
LARGEST_ROUND = 20


class StepRounds:
    """Which events, the steps of numbered optimizers, complete training steps.

    Attributes:
        boundary: The optimizer that ends rounds; None where each event is a step.
        is_settled: Whether it is clear what the next events mean; until then, no profiler window may begin.
    """

    def __init__(self, is_finished: Callable[[int], bool], leftover: int = 0) -> None:
        self.boundary: int | None = None
        self.is_settled = False
        self._is_finished = is_finished
        self._waiting: list[int] = []
        self._updates = 0  # of those that wait; an event that continues one belongs to it
        self._update: set[int] = set()  # the optimizers of the last one
        self._single: int | None = None
        self._longest = 0
        #: Events of a round that was never completed; they join the next step.
        self._leftover = leftover

    @property
    def left(self) -> int:
        """Events that no step holds yet."""
        return len(self._waiting) + self._leftover

    @property
    def waits(self) -> bool:
        """Whether events wait because nobody can tell yet what they are; those of a running round do not count."""
        return bool(self._waiting) and self.boundary is None

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
        is_other = not continues or optimizer in self._update  # one that steps again begins another update
        self._updates += is_other
        self._update = {optimizer} if is_other else {*self._update, optimizer}
        sizes = None if self.boundary is None else self._advance_round(optimizer, self.boundary)
        if sizes is None:
            may_await = awaits_others and may_wait and self._updates <= LARGEST_ROUND
            sizes = () if may_await else self._decide(optimizer, may_wait=may_wait and not continues)
        return self._complete(sizes)

    def finish(self) -> tuple[int, ...]:
        """The sizes of the steps that the waiting events make at the end; a round that is not whole is none."""
        waiting = self._waiting
        if self.boundary is None and len(list(groupby(waiting))) > len(set(waiting)):
            return self._complete(self._begin_rounds(_rarest(waiting)))
        is_round = self.boundary is not None and len(self._waiting) <= 2 * self._longest
        return self._complete(() if is_round else (1,) * len(self._waiting))

    def _complete(self, sizes: tuple[int, ...]) -> tuple[int, ...]:
        del self._waiting[: sum(sizes)]
        # In the middle of a round that was just recognized no window may begin.
        self.is_settled = not self._waiting or (self.is_settled and self.boundary is not None)
        if sizes:
            self._updates = len(self._waiting)
            sizes, self._leftover = (sizes[0] + self._leftover, *sizes[1:]), 0
        return sizes

    def _advance_round(self, optimizer: int, boundary: int) -> tuple[int, ...] | None:
        """The step that an event completes; None where rounds end with it."""
        waiting = self._waiting
        if optimizer == boundary:
            self._longest = max(self._longest, len(waiting) - 1)
            return (len(waiting),)
        if self._is_finished(boundary):
            self.boundary = None
            if len(waiting) - 1 <= 2 * self._longest:  # the last round was not completed
                self._leftover += len(waiting) - 1
                del waiting[:-1]
            return None
        if self._updates > max(LARGEST_ROUND, 2 * self._longest):
            self.boundary = None
            return self._begin_rounds(optimizer) if len(set(waiting)) == 1 else None
        return ()

    def _decide(self, optimizer: int, *, may_wait: bool) -> tuple[int, ...]:
        waiting, before = self._waiting, self._single
        earlier = [*([] if before is None else [before]), *waiting[:-1]]
        if len(set(waiting)) == 1:
            if before is None or before == optimizer or self._is_finished(before) or len(waiting) > 1:
                return self._release(optimizer)
            return () if may_wait else self._begin_rounds(before)
        if all(self._is_finished(other) for other in waiting if other != optimizer):
            return self._release(optimizer)
        if optimizer in earlier and optimizer != earlier[-1]:  # it returns: a round is over
            rarest = _rarest(earlier)
            is_isolated = all(number != rarest or len(list(run)) == 1 for number, run in groupby(earlier))
            return self._begin_rounds(rarest) if is_isolated else self._release(optimizer)
        return self._release(optimizer) if self._updates > 2 * LARGEST_ROUND else ()

    def _release(self, optimizer: int) -> tuple[int, ...]:
        self._single = optimizer
        return (1,) * len(self._waiting)

    def _begin_rounds(self, boundary: int) -> tuple[int, ...]:
        ends = [index for index, optimizer in enumerate(self._waiting, 1) if optimizer == boundary]
        sizes = tuple(end - start for start, end in zip([0, *ends], ends, strict=False))
        self.boundary, self._single = boundary, None
        self._longest = max(sizes[1:], default=len(self._waiting)) - 1
        return sizes


def _rarest(events: Sequence[int]) -> int:
    """The optimizer that stepped least often; of several the one that came last."""
    first = {optimizer: index for index, optimizer in reversed(list(enumerate(events)))}
    return min(first, key=lambda optimizer: (events.count(optimizer), -first[optimizer]))


class StepSource:
    """What ends a step in this process: a step boundary of ``perfscope.frameworks``, of one or several objects.

    Attributes:
        name: The boundary that was armed or reported last.
        chosen: The object that ends steps, as the user chose it; None where the rhythm of the objects decides.
        alone: Reads the object whose boundaries are steps of their own; None where that is not known.
        thread: The thread that trains.
    """

    def __init__(self, chosen: int | str | None = None) -> None:
        self.name: str | None = None
        self.chosen = chosen
        self._emitters = _Emitters()
        #: Optimizers that were built and have not stepped.
        self._unused: list[_Reference] = []
        self._rounds = StepRounds(self._emitters.is_finished)
        self._parts = 0
        self.alone: _Reference | None = None
        self.thread: int | None = None
        #: Whether the last note was about rounds; None before any.
        self._said: bool | None = None

    @property
    def is_settled(self) -> bool:
        """See ``StepRounds``."""
        return self.chosen is not None or self._rounds.is_settled

    @property
    def waits(self) -> bool:
        """See ``StepRounds.waits``."""
        return self.chosen is None and self._rounds.waits

    def arm(self, name: str) -> None:
        """Ignore boundaries of lower priority from now on: their steps are parts of this one's."""
        if self.name is None or _priority(name) > _priority(self.name):
            self._set_name(name)
        elif name == self.name and self._emitters.are_all_finished():
            self.alone = None
            self._emitters.clear()  # another object goes on in the same way

    def set_training_thread(self) -> None:
        """Training runs in this thread."""
        self.thread = threading.get_ident()

    def is_training_thread(self) -> bool:
        """Whether this is the thread that trains; the main thread until that is known."""
        return threading.get_ident() == (self.thread or threading.main_thread().ident)

    def add_optimizer(self, optimizer: object) -> None:
        """An optimizer was built, which may step in turn with others."""
        if self.chosen is None and self._emitters.find(optimizer) is None:
            self.alone = None
            self._unused.append(weakref.ref(optimizer))

    def is_last(self, emitter: object) -> bool:
        """Whether an object is the one that reached the boundary last."""
        return self._emitters.last() is emitter

    def counts(self, name: str) -> bool:
        """Whether a boundary of this name ends steps: none of higher priority is in use any more."""
        if self.name is None or _priority(name) >= _priority(self.name):
            return True
        if not self._emitters.are_all_finished():
            return False
        self._set_name(name)  # what trained before is gone, as after a comparison of two ways to train
        return True

    def on_boundary(
        self, name: str, emitter: object, *, continues: bool = False, may_wait: bool = True
    ) -> tuple[int, ...] | None:
        """A boundary was reached by one of a framework's objects; see ``StepRounds.on_event``.

        None for a boundary that does not count: of lower priority, or of another thread than the first.
        """
        sizes = self._find_steps(name, emitter, continues=continues, may_wait=may_wait)
        is_alone = self.chosen is None and self._rounds.is_alone(self._emitters.last_number)
        self.alone = self._emitters.last if is_alone and not self._awaits_others(name) else None
        return sizes

    def trains_alone(self, name: str, emitter: object) -> bool:
        """Whether a boundary is a step of its own, as in nearly every step: ``on_boundary`` need not be asked."""
        is_alone = self.alone is not None and self.alone() is emitter
        return is_alone and name == self.name and threading.get_ident() == self.thread

    def _find_steps(self, name: str, emitter: object, *, continues: bool, may_wait: bool) -> tuple[int, ...] | None:
        if self.thread is None:
            self.set_training_thread()
        if threading.get_ident() != self.thread or not self.counts(name):
            return None
        if name != self.name:
            self._set_name(name)
        number, is_new = self._emitters.number_of(emitter)
        if self.chosen is not None:
            return self._on_chosen(number - self._emitters.gone)
        if is_new and self._unused:
            self._use(emitter)
        awaits = self._awaits_others(name)
        sizes = self._rounds.on_event(number, continues=continues, awaits_others=awaits, may_wait=may_wait)
        if sizes and awaits and may_wait:
            self._unused.clear()  # they were awaited for long enough
        return sizes

    def _awaits_others(self, name: str) -> bool:
        self._unused = [read for read in self._unused if read() is not None]
        return bool(self._unused) and name == "optimizer"

    def _use(self, optimizer: object) -> None:
        """An optimizer stepped for the first time, and none with its parameters will, nor is one without awaited."""
        weights = _parameters(optimizer)
        others = [read for read in self._unused if read() is not optimizer]
        self._unused = [read for read in others if (found := _parameters(read())) and found.isdisjoint(weights)]

    def pop_note(self) -> str:
        """What a reader must know of the objects that end steps; empty where nothing is new."""
        if self.chosen is not None or self._emitters.count <= 1 or self.name is None or self.waits:
            return ""
        boundary = self._rounds.boundary
        if self._said == (boundary is not None):
            return ""
        self._said = boundary is not None
        event = STEP_BOUNDARIES[self.name].event
        if boundary is None:
            return f"{event}: several objects train one after the other, and the steps of all count"
        number = boundary - self._emitters.gone
        return (
            f"{event}: several objects take turns, and a step is a whole round, which ends with number {number} in the "
            "order of their first steps; `--step-optimizer` chooses another one"
        )

    def describe_unused_choice(self) -> str:
        """Why no step was counted, where the chosen object never came; empty where it did."""
        if not isinstance(self.chosen, int) or self._parts <= 0 or self.chosen <= self._emitters.count:
            return ""
        return f"--step-optimizer {self.chosen}: no step was counted, because only {self._emitters.count} stepped"

    def finish(self) -> tuple[int, ...]:
        """See ``StepRounds.finish``."""
        return () if self.chosen is not None else self._rounds.finish()

    def _on_chosen(self, number: int) -> tuple[int, ...]:
        self._parts += 1
        if self.chosen not in (EVERY, number):
            return ()
        size, self._parts = self._parts, 0
        return (size,)

    def _set_name(self, name: str) -> None:
        self.name, self.alone = name, None
        self._emitters.clear()
        self._rounds = StepRounds(self._emitters.is_finished, leftover=self._rounds.left)  # parts of the next step


class _Emitters:
    """The objects that have reached the boundary, numbered in that order; none of them is kept alive.

    An ``id`` may be used again and stands for nothing. A new object takes the number of a deleted one of its class
    while others are alive. So it takes over its part of their rounds, as the inner optimizers of meta-learning do.

    Attributes:
        count: How many there were.
        gone: How many of them were gone when none was left for the last time.
        last: Reads the object that came last, whose number is ``last_number``; 0 for none.
    """

    def __init__(self) -> None:
        self.count = 0
        self.clear()

    def clear(self) -> None:
        """Forget all: other objects end steps from now on."""
        self.gone = self.count
        self.last: _Reference = lambda: None
        self.last_number = 0
        self._numbers: dict[int, int] = {}
        self._entries: dict[int, tuple[_Reference, type]] = {}

    def number_of(self, emitter: object) -> tuple[int, bool]:
        """The number of an object, from 1, and whether this is the first time that it comes."""
        found = self.find(emitter)
        number = self.last_number = self._add(emitter) if found is None else found
        self.last = self._entries[number][0]
        return number, found is None

    def find(self, emitter: object) -> int | None:
        """The number of an object; None where it has not come."""
        number = self._numbers.get(id(emitter), 0)
        return number if number and self._entries[number][0]() is emitter else None

    def is_finished(self, number: int) -> bool:
        """Whether an object is gone."""
        return number not in self._entries or self._entries[number][0]() is None

    def are_all_finished(self) -> bool:
        """Whether all objects are gone, if there were any."""
        return bool(self._entries) and all(read() is None for read, _ in self._entries.values())

    def _add(self, emitter: object) -> int:
        if self.are_all_finished():
            self.clear()
        free = (at for at, (read, kind) in self._entries.items() if read() is None and kind is type(emitter))
        number = next(free, self.count + 1)
        self.count = max(self.count, number)
        self._numbers[id(emitter)] = number
        self._entries[number] = _refer(emitter), type(emitter)
        return number


def _parameters(optimizer: Any) -> set[int]:
    ids = value_or_none(lambda: {id(weight) for group in optimizer.param_groups for weight in group["params"]})
    return ids or set()


def _refer(emitter: object) -> _Reference:
    try:
        return weakref.ref(emitter)
    except TypeError:  # its class has slots, and none for references
        return lambda: emitter


def _priority(name: str) -> int:
    return STEP_BOUNDARIES[name].priority
