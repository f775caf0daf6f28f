"""Decides what ends a training step: the framework of highest priority, and only the first of its objects."""

from __future__ import annotations

import threading

from perfscope.frameworks import STEP_BOUNDARIES

_FOREIGN_STEPS_BEFORE_CHANGE = 3
#: A GAN's generator is stepped after at most so many steps of its discriminator; a longer cycle is not one loop.
_LARGEST_CYCLE = 20


class StepSource:
    """What ends a step in this process: a step boundary of ``perfscope.frameworks``, of one object.

    Attributes:
        name: The boundary that was armed or reported last; None before any.
        has_moved: Set when another object ends steps from now on.
    """

    def __init__(self) -> None:
        self.name: str | None = None
        self.has_moved = False
        self._primary: int | None = None
        self._foreign_steps = 0
        self._patience = _FOREIGN_STEPS_BEFORE_CHANGE
        #: Of each object that is not the primary one: primary steps since its last step, and those before that step.
        self._cycles: dict[int, tuple[int, int]] = {}
        self._thread: int | None = None

    def arm(self, name: str) -> None:
        """Ignore boundaries of lower priority from now on: their steps are parts of this one's."""
        if self.name is None or _priority(name) > _priority(self.name):
            self._set_name(name)

    def set_training_thread(self) -> None:
        """Training runs in this thread; the profiler belongs to it."""
        self._thread = threading.get_ident()

    def is_training_thread(self) -> bool:
        """Whether this is the thread that trains; the main thread until that is known."""
        if self._thread is None:
            return threading.current_thread() is threading.main_thread()
        return threading.get_ident() == self._thread

    def on_boundary(self, name: str, emitter: object) -> bool:
        """A boundary was reached by one of a framework's objects; True where that ends a training step.

        Only the boundary of highest priority counts, only the first of several objects (a GAN has two optimizers and
        one loop), only the thread that began.
        """
        if self._thread is None:
            self.set_training_thread()
        if threading.get_ident() != self._thread or (self.name and _priority(name) < _priority(self.name)):
            return False
        if name != self.name:
            self._set_name(name)
        if self._primary is None or self._primary == id(emitter):
            self._primary, self._foreign_steps = id(emitter), 0
            self._cycles = {foreign: (steps + 1, before) for foreign, (steps, before) in self._cycles.items()}
            return True
        return self._is_new_primary(emitter)

    def _is_new_primary(self, emitter: object) -> bool:
        """Whether an object that is not the primary one is from now on."""
        self._foreign_steps += 1
        if self._foreign_steps >= self._patience:
            # The first object is no longer stepped, as after a warm-up phase with an optimizer of its own.
            self._set_primary(emitter, _FOREIGN_STEPS_BEFORE_CHANGE)
            return True
        cycle, before = self._cycles.get(id(emitter), (0, 0))
        self._cycles[id(emitter)] = (0, cycle)
        if 1 < cycle == before <= _LARGEST_CYCLE:
            # It is stepped once in every ``cycle`` steps of the first one, regularly: those make one pass of the loop.
            self._set_primary(emitter, 2 * cycle)
            return True
        return False

    def _set_name(self, name: str) -> None:
        self.name, self._primary = name, None
        self._cycles.clear()

    def _set_primary(self, emitter: object, patience: int) -> None:
        self._primary, self._foreign_steps, self._patience = id(emitter), 0, patience
        self._cycles.clear()
        self.has_moved = True


def _priority(name: str) -> int:
    return STEP_BOUNDARIES[name].priority
