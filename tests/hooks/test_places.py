"""Where the training thread is: lines of the script, in usual and in long steps, without a value of the script."""

from __future__ import annotations

import json
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import SimpleNamespace

import pytest

from perfscope.hooks import places
from perfscope.hooks.open_window import OPEN_WINDOW
from perfscope.hooks.places import Places
from perfscope.hooks.step import StepAccumulator
from tests.conftest import SCRIPTS, environment

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
    loop.step.steps = 1
    loop.places = Places(loop.step, 0, loop.written.append)
    loop.step.started_ns = MS
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
        loop.places._running[f"f{number}", "a.py", number, ""] += 1
        loop.step.steps += 1
        loop.step.started_ns += STEP_MS * MS
        loop.places._close(loop.step.steps, loop.step.started_ns)
    assert len(loop.places._usual) <= 2 * 4 + 1
    assert len(loop.counts) <= 4


def test_a_step_that_lasts_keeps_counts_of_places_alone(loop: Loop) -> None:
    loop.begun.set()
    loop.places._thread = threading.get_ident()
    for _ in range(500):
        loop.places.look()
    assert len(loop.places._running) == 1
    assert sum(loop.places._running.values()) == 500


def test_a_step_that_is_counted_ends_with_its_hooks(loop: Loop) -> None:
    """They may write a trace for seconds; the step after it is not long because of that."""
    loop.places._thread = threading.get_ident()
    for _ in range(10):
        loop.places.look()
        loop.step.steps += 1
        loop.places.look()  # from inside of the hooks
        loop.step.started_ns += STEP_MS * MS
    loop.places.look()
    assert set(loop.places._lengths_ns) == {STEP_MS * MS}


def test_the_first_step_is_no_measure(loop: Loop) -> None:
    loop.places._thread = threading.get_ident()
    loop.step.started_ns = 1000 * MS
    for _ in range(3):
        loop.places.look()
        loop.step.steps += 1
        loop.step.started_ns += STEP_MS * MS
    loop.places.look()
    assert set(loop.places._lengths_ns) == {STEP_MS * MS}


@contextmanager
def hurried_threads() -> Iterator[None]:
    """Threads take turns as often as they can."""
    usual_s = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    try:
        yield
    finally:
        sys.setswitchinterval(usual_s)


def test_objects_of_the_script_end_in_its_own_thread(loop: Loop) -> None:
    """A look that kept a frame would keep its objects, and end them in its own thread, where the function returns."""
    trains, ended_in = True, set[int]()

    class Owned:
        def __del__(self) -> None:
            ended_in.add(threading.get_ident())

    def call(depth: int) -> int:
        owned = Owned()
        return call(depth - 1) + (owned is None) if depth else 0

    def train() -> None:
        while trains:
            call(20)

    with hurried_threads():
        thread = threading.Thread(target=train)
        thread.start()
        loop.places._thread = thread.ident or 0
        ends_s = time.monotonic() + 1
        while time.monotonic() < ends_s:
            loop.places.look()
        trains = False
        thread.join()
    assert ended_in == {thread.ident}


def test_threads_that_begin_and_end_while_garbage_is_collected_are_held_up_by_no_look() -> None:
    command = [sys.executable, str(SCRIPTS / "looking.py")]
    ended = subprocess.run(command, env=environment(), capture_output=True, text=True, timeout=60, check=False)
    assert ended.returncode == 0, ended.stderr
    assert int(ended.stdout) > 100
