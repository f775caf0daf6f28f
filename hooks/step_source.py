"""Decides what ends a training step: the highest framework that is present, and only the first of its objects."""

from __future__ import annotations

import threading

#: What may tell that a step completed; the highest that is present does.
PRIORITY = {
    "optimizer": 10,
    "rpc_optimizer": 12,
    "grad_scaler": 15,
    "megatron_optimizer": 20,
    "deepspeed": 30,
    "deepspeed_pipeline": 40,
    "torchtitan": 45,
    "megatron": 50,
}

_OTHERS_BEFORE_REELECTION = 3
#: A generator is stepped after so many steps of its discriminator at most; what is rarer is no part of the loop.
_LARGEST_CYCLE = 20


class StepSource:
    """What ends a step in this process.

    Attributes:
        name: The source that was armed or heard last; None before any.
        moved: Set when another object of the source ends steps from now on.
    """

    def __init__(self) -> None:
        self.name: str | None = None
        self.moved = False
        self._primary: int | None = None
        self._others = 0
        self._patience = _OTHERS_BEFORE_REELECTION
        self._since: dict[int, tuple[int, int]] = {}
        self._thread: int | None = None

    def arm(self, source: str) -> None:
        """Ignore simpler sources from now on: their steps are parts of this one's."""
        if self.name is None or PRIORITY[source] > PRIORITY[self.name]:
            self.name, self._primary = source, None
            self._since.clear()

    def bind_thread(self) -> None:
        """Training runs in this thread; the profiler belongs to it."""
        self._thread = threading.get_ident()

    def is_training_thread(self) -> bool:
        """Whether this is the thread that trains; the main thread until that is known."""
        if self._thread is None:
            return threading.current_thread() is threading.main_thread()
        return threading.get_ident() == self._thread

    def ends_a_step(self, source: str, key: object) -> bool:
        """Whether an event of a source's object ends a step.

        Only the highest source counts, only the first of several of its objects (a GAN has two optimizers and one
        loop), only the thread that began.
        """
        thread = threading.get_ident()
        if self._thread is None:
            self._thread = thread
        if thread != self._thread or (self.name and PRIORITY[source] < PRIORITY[self.name]):
            return False
        if source != self.name:
            self.name, self._primary = source, None
        if self._primary is None or self._primary == id(key):
            self._primary, self._others = id(key), 0
            self._since = {other: (now + 1, before) for other, (now, before) in self._since.items()}
            return True
        self._others += 1
        if self._others >= self._patience:
            # The first object is no longer stepped, as after a warm-up phase with an optimizer of its own.
            self._elect(key, _OTHERS_BEFORE_REELECTION)
            return True
        cycle, before = self._since.get(id(key), (0, 0))
        self._since[id(key)] = (0, cycle)
        if 1 < cycle == before <= _LARGEST_CYCLE:
            # It comes once in so many steps of the first, time after time: the loop is as long as that.
            self._elect(key, 2 * cycle)
            return True
        return False

    def _elect(self, key: object, patience: int) -> None:
        self._primary, self._others, self._patience = id(key), 0, patience
        self._since.clear()
        self.moved = True
