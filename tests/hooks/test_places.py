"""Where the training thread is: lines of the script, in usual and in long steps, without a value of the script."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable
from types import SimpleNamespace

import pytest

from perfscope.hooks import places
from perfscope.hooks.open_window import OPEN_WINDOW
from perfscope.hooks.places import Places
from perfscope.hooks.step import StepAccumulator

MS = 1_000_000
STEP_MS = 10


class Loop:
    """A thread that is in one of two functions of this file, or in a library, until the test lets it go on."""

    def __init__(self) -> None:
        self.step, self.written = StepAccumulator(), list[bytes]()
        self.places: Places
        self.begun, self.go = threading.Event(), threading.Event()

    def look(self, function: Callable[[], None], lengths_ms: list[int]) -> None:
        """Look once into each of some steps while a thread runs a function, and end them."""
        self.go.clear()
        self.begun.clear()
        thread = threading.Thread(target=function, args=())
        thread.start()
        self.begun.wait()
        time.sleep(0.02)
        self.places._thread = thread.ident or 0
        for length_ms in lengths_ms:
            self.places.look()
            self.step.steps += 1
            self.step.started_ns += length_ms * MS
        self.places.look()
        self.go.set()
        thread.join()

    def train(self) -> None:
        """What is in all steps."""
        self.begun.set()
        self.go.wait()

    def send_metrics(self) -> None:
        """What is in long steps alone."""
        self.begun.set()
        json.dumps([0], default=str) if self.go.is_set() else self.go.wait()

    @property
    def counts(self) -> dict[str, tuple[int, int]]:
        """How often each function was seen in usual and in long steps."""
        self.places.write()
        record = json.loads(self.written[-1])
        counts: dict[str, tuple[int, int]] = {}
        for place in record["places"]:
            usual, long = counts.get(place["function"], (0, 0))
            counts[place["function"]] = usual + place["usual"], long + place["long"]
        return counts


@pytest.fixture
def loop() -> Loop:
    """A process whose first step is done."""
    loop = Loop()
    loop.step.steps, loop.step.started_ns = 1, MS
    loop.places = Places(loop.step, 0, loop.written.append)
    return loop


def test_lines_of_long_steps_are_told_from_those_of_usual_ones(loop: Loop) -> None:
    loop.look(loop.train, [STEP_MS] * 20)
    loop.look(loop.send_metrics, [5 * STEP_MS] * 4)
    loop.look(loop.train, [STEP_MS] * 4)
    counts = loop.counts
    assert counts["Loop.train"][0] >= 24
    assert counts["Loop.send_metrics"][1] == 4
    assert counts["Loop.send_metrics"][0] <= 1  # the look into the step after them
    (sent,) = (place for place in json.loads(loop.written[-1])["places"] if place["function"] == "Loop.send_metrics")
    assert sent["file"].endswith("test_places.py")
    assert sent["calls"] == "threading.Event.wait"


def test_nothing_is_looked_at_in_a_window_or_where_the_thread_is_gone(
    loop: Loop, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(places, "OPEN_WINDOW", SimpleNamespace(is_open=True))
    loop.look(loop.train, [STEP_MS] * 5)
    assert loop.counts == {}
    monkeypatch.setattr(places, "OPEN_WINDOW", OPEN_WINDOW)
    loop.places._thread = -1
    loop.places.look()
    assert loop.counts == {}


def test_a_look_keeps_no_frame_and_few_places(loop: Loop, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(places, "_MOST_PLACES", 4)
    for number in range(100):
        loop.places._running.append((f"f{number}", "a.py", number, ""))
        loop.step.steps += 1
        loop.step.started_ns += STEP_MS * MS
        loop.places._close(loop.step.steps, loop.step.started_ns)
    assert len(loop.places._usual) <= 2 * 4 + 1
    assert len(loop.counts) <= 4
