"""Runs a producer in a thread of its own, a few items ahead of its consumer.

Inflating releases Python's global lock, so it costs no time of its own while earlier events are scanned.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import AbstractContextManager, nullcontext
from queue import Empty, Full, Queue
from threading import Event, Thread
from typing import Generic, TypeVar

from msgspec import Struct

from perfscope.sources.traces.reading_choices import Pace

_T = TypeVar("_T")
_DEPTH = 2
_CHECK_EVERY_S = 0.05


def paced(items: Iterator[_T], pace: Pace) -> AbstractContextManager[Iterator[_T]]:
    """The items of a producer; leave the context to end it."""
    return Ahead(items) if pace is Pace.AHEAD else nullcontext(items)


class _Raised(Struct, frozen=True):
    """An exception of the producer."""

    error: BaseException


class _Finished:
    pass


class Ahead(AbstractContextManager[Iterator[_T]], Generic[_T]):
    """The items of a producer, made ahead in a thread; leave the context to end the thread.

    An exception of the producer is raised where its next item would have come.
    """

    def __init__(self, items: Iterator[_T]) -> None:
        self._items = items
        self._ready: Queue[_T | _Raised | _Finished] = Queue(_DEPTH)
        self._is_left = Event()
        self._thread = Thread(target=self._produce, name="perfscope-ahead", daemon=True)

    def __enter__(self) -> Iterator[_T]:
        self._thread.start()
        return self._consume()

    def __exit__(self, *_: object) -> None:
        self._is_left.set()
        try:
            while True:
                self._ready.get_nowait()
        except Empty:
            self._thread.join()

    def _produce(self) -> None:
        last: _Raised | _Finished = _Finished()
        try:
            for item in self._items:
                if not self._put(item):
                    return
        except BaseException as error:  # noqa: BLE001 - it is raised again in the consumer
            last = _Raised(error)
        self._put(last)

    def _put(self, item: _T | _Raised | _Finished) -> bool:
        while not self._is_left.is_set():
            try:
                self._ready.put(item, timeout=_CHECK_EVERY_S)
            except Full:
                continue
            return True
        return False

    def _consume(self) -> Iterator[_T]:
        while True:
            item = self._ready.get()
            if isinstance(item, _Finished):
                return
            if isinstance(item, _Raised):
                raise item.error
            yield item
