"""Small files are read in this thread while they are at hand, and in several where they must be waited for."""

from __future__ import annotations

import threading

import pytest

from perfscope.engine import reading

ITEMS = list(range(600))


def threads_that_read(items: list[int]) -> set[int]:
    threads = set()

    def read(item: int) -> int:
        threads.add(threading.get_ident())
        return -item

    assert list(reading.read_each(read, items)) == [-item for item in items]
    return threads


def test_what_is_at_hand_is_read_without_threads(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reading, "_AT_HAND_S", 3600.0)
    assert threads_that_read(ITEMS) == {threading.get_ident()}
    assert not threads_that_read([])


def test_what_must_be_waited_for_is_read_in_threads(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reading, "_AT_HAND_S", 0.0)
    assert len(threads_that_read(ITEMS)) > 1
    assert threads_that_read(ITEMS[:8]) == {threading.get_ident()}
