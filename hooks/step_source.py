"""Decides what ends a training step: the framework of highest priority, and which of its objects."""

from __future__ import annotations

import threading
import weakref
from typing import TYPE_CHECKING, Any

from perfscope.frameworks import STEP_BOUNDARIES
from perfscope.hooks.guard import value_or_none
from perfscope.hooks.selection import EVERY
from perfscope.hooks.step_rounds import StepRounds

if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import TypeAlias

    #: Reads an object; None where it is gone.
    _Reference: TypeAlias = Callable[[], object]

_MOST_OBJECTS = 64
_SEVERAL = 2


class StepSource:
    """What ends a step in this process: a step boundary of ``perfscope.frameworks``, of one or several objects.

    Attributes:
        name: The boundary that was armed or reported last; None before any.
        chosen: The object that ends steps, as the user chose it; None where the rhythm of the objects decides.
        alone: Reads the object whose boundaries are steps of their own; None where that is not known.
        thread: The thread that trains; None before that is known.
    """

    def __init__(self, chosen: int | str | None = None) -> None:
        self.name: str | None = None
        self.chosen = chosen
        self._emitters = _Emitters()
        self._unused = _Unused()
        self._rounds = StepRounds(self._emitters.is_finished)
        self._parts = 0
        self.alone: _Reference | None = None
        self.thread: int | None = None
        #: Whether the last note was about rounds; None before any.
        self._said: bool | None = None

    @property
    def is_settled(self) -> bool:
        """Whether it is clear what ends the next steps, so that a profiler window may begin."""
        return self.chosen is not None or self._rounds.is_settled

    @property
    def waits(self) -> bool:
        """Whether boundaries that were reached wait, because nobody can tell yet which training steps they make."""
        return self.chosen is None and self._rounds.waits

    def arm(self, name: str) -> None:
        """Ignore boundaries of lower priority from now on: their steps are parts of this one's."""
        if self.name is None or _priority(name) > _priority(self.name):
            self._set_name(name)
        elif name == self.name and self._emitters.are_all_finished():
            self.alone = None
            self._emitters.clear()  # another object goes on in the same way

    def set_training_thread(self) -> None:
        """Training runs in this thread; the profiler belongs to it."""
        self.thread = threading.get_ident()

    def is_training_thread(self) -> bool:
        """Whether this is the thread that trains; the main thread until that is known."""
        if self.thread is None:
            return threading.get_ident() == threading.main_thread().ident
        return threading.get_ident() == self.thread

    def add_optimizer(self, optimizer: object) -> None:
        """An optimizer was built, which may step in turn with others."""
        if self.chosen is None and not self._emitters.has(optimizer):
            self.alone = None
            self._unused.add(optimizer)

    def is_last(self, emitter: object) -> bool:
        """Whether an object is the one that reached the boundary last."""
        return self._emitters.is_last(emitter)

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
        """A boundary was reached by one of a framework's objects.

        Returns:
            The sizes of the training steps that are now complete, in boundaries that were reached, the oldest first.
            None for a boundary that does not count: of lower priority, or of another thread than the first.
        """
        sizes = self._find_steps(name, emitter, continues=continues, may_wait=may_wait)
        awaits_none = name != "optimizer" or not self._unused
        is_alone = self.chosen is None and awaits_none and self._rounds.is_alone(self._emitters.last_number)
        self.alone = self._emitters.last_reference if is_alone else None
        return sizes

    def trains_alone(self, name: str, emitter: object) -> bool:
        """Whether a boundary is a step of its own, as in nearly every step: ``on_boundary`` need not be asked."""
        return (
            self.alone is not None
            and self.alone() is emitter
            and name == self.name
            and threading.get_ident() == self.thread
        )

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
            self._unused.on_step(emitter)
        awaits_others = bool(self._unused) and name == "optimizer"
        sizes = self._rounds.on_event(number, continues=continues, awaits_others=awaits_others, may_wait=may_wait)
        if sizes and awaits_others and may_wait:
            self._unused.clear()  # they were awaited for long enough
        return sizes

    def pop_note(self) -> str:
        """What a reader must know of the objects that end steps; empty where nothing is new."""
        if self.chosen is not None or self._emitters.count < _SEVERAL or self.name is None or self.waits:
            return ""
        boundary = self._rounds.boundary
        if self._said == (boundary is not None):
            return ""
        self._said = boundary is not None
        event = STEP_BOUNDARIES[self.name].event
        if boundary is None:
            return f"{event}: several objects train one after the other, and the steps of all count"
        return (
            f"{event}: several objects take turns, and a step is a whole round, which ends with "
            f"number {boundary - self._emitters.gone} in the order of their first steps; `--step-optimizer` chooses "
            "another one"
        )

    def describe_unused_choice(self) -> str:
        """Why no step was counted, where the chosen object never came; empty where it did."""
        if not isinstance(self.chosen, int) or self._parts <= 0 or self.chosen <= self._emitters.count:
            return ""
        return f"--step-optimizer {self.chosen}: no step was counted, because only {self._emitters.count} stepped"

    def finish(self) -> tuple[int, ...]:
        """Training ended: the sizes of the steps that the boundaries make that were still waiting."""
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
        self._rounds = StepRounds(self._emitters.is_finished)


class _Emitters:
    """The objects that have reached the boundary, numbered in that order; none of them is kept alive.

    An ``id`` may be used again and stands for nothing. A new object takes the number of a deleted one of its class
    while others are alive. So it takes over its part of their rounds, as the inner optimizers of meta-learning do.
    Where none is left, numbers go on.

    Attributes:
        count: How many there were.
        gone: How many of them were gone when none was left for the last time.
    """

    def __init__(self) -> None:
        self.count = 0
        self.gone = 0
        self._last: tuple[_Reference, int] = (lambda: None, 0)
        self._by_id: dict[int, tuple[_Reference, int]] = {}
        self._by_number: dict[int, _Reference] = {}
        self._classes: dict[int, type] = {}

    def number_of(self, emitter: object) -> tuple[int, bool]:
        """The number of an object, from 1, and whether this is the first time that it comes."""
        read, number = self._last
        if read() is emitter:
            return number, False
        entry = self._by_id.get(id(emitter))
        is_new = entry is None or entry[0]() is not emitter
        if entry is None or is_new:
            entry = self._add(emitter)
        self._last = entry
        return entry[1], is_new

    @property
    def last_number(self) -> int:
        """The number of the object that came last; 0 for none."""
        return self._last[1]

    @property
    def last_reference(self) -> _Reference:
        """Reads the object that came last."""
        return self._last[0]

    def is_last(self, emitter: object) -> bool:
        """Whether the object came last."""
        return self._last[0]() is emitter

    def has(self, emitter: object) -> bool:
        """Whether the object has come."""
        entry = self._by_id.get(id(emitter))
        return entry is not None and entry[0]() is emitter

    def is_finished(self, number: int) -> bool:
        """Whether an object is gone."""
        read = self._by_number.get(number)
        return read is None or read() is None

    def are_all_finished(self) -> bool:
        """Whether objects have come, and all are gone."""
        return self.count > self.gone and all(read() is None for read in self._by_number.values())

    def clear(self) -> None:
        """Forget all of them, because other objects end steps from now on."""
        self.gone = self.count
        self._last = (lambda: None, 0)
        self._by_id.clear()
        self._by_number.clear()
        self._classes.clear()

    def _add(self, emitter: object) -> tuple[_Reference, int]:
        if self.are_all_finished():
            self.clear()
        number = next((number for number, read in self._by_number.items() if self._succeeds(emitter, number)), None)
        if number is None:
            self.count += 1
            number = self.count
        entry = _refer(emitter), number
        self._by_id[id(emitter)] = entry
        self._by_number[number], self._classes[number] = entry[0], type(emitter)
        if len(self._by_id) > _MOST_OBJECTS:
            self._by_id = {key: entry for key, entry in self._by_id.items() if entry[0]() is not None}
        return entry

    def _succeeds(self, emitter: object, number: int) -> bool:
        return self._by_number[number]() is None and self._classes[number] is type(emitter)


class _Unused:
    """Optimizers that were built and have not stepped, and whose parameters no other optimizer steps.

    An optimizer that wraps another one, or is a part of it, has the same parameters and never steps by itself.
    """

    def __init__(self) -> None:
        self._optimizers: list[weakref.ref[Any]] = []

    def __bool__(self) -> bool:
        if not self._optimizers:
            return False
        self._optimizers = [read for read in self._optimizers if read() is not None]
        return bool(self._optimizers)

    def add(self, optimizer: object) -> None:
        """An optimizer was built."""
        self._optimizers.append(weakref.ref(optimizer))

    def on_step(self, optimizer: object) -> None:
        """An optimizer stepped for the first time."""
        stepped = _parameters(optimizer)
        self._optimizers = [
            read
            for read in self._optimizers
            if (other := read()) is not optimizer and other is not None and not _shares(_parameters(other), stepped)
        ]

    def clear(self) -> None:
        """They are not awaited any longer."""
        self._optimizers.clear()


def _shares(parameters: set[int], stepped: set[int]) -> bool:
    return not parameters or not parameters.isdisjoint(stepped)


def _parameters(optimizer: Any) -> set[int]:
    """The ids of an optimizer's parameters, for as long as it lives; empty where it does not tell."""
    ids = value_or_none(lambda: {id(weight) for group in optimizer.param_groups for weight in group["params"]})
    return ids or set()


def _refer(emitter: object) -> _Reference:
    try:
        return weakref.ref(emitter)
    except TypeError:  # its class has slots, and none for references
        return lambda: emitter


def _priority(name: str) -> int:
    return STEP_BOUNDARIES[name].priority
