"""A window takes CUPTI away with it, by a variable of the environment that stays as the script finds it."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest

from perfscope.hooks.profiler.window import VARIABLE, CuptiDetachment, find_obstacle, reserve_variable


class Kineto:
    """The parts of torch and kineto that detach CUPTI: a thread that waits for the next call of the CUDA runtime."""

    def __init__(self, cuda: str | None = "13.0") -> None:
        self.is_capturing = False
        self.version = SimpleNamespace(cuda=cuda)
        self.cuda = SimpleNamespace(
            is_initialized=lambda: True,
            is_current_stream_capturing=lambda: self.is_capturing,
            current_stream=lambda: SimpleNamespace(query=self._call_runtime),
        )
        self.is_attached = True
        self.calls = 0
        self._called = threading.Event()
        self.thread: threading.Thread | None = None

    def stop_profiler(self) -> None:
        """What ``torch.profiler.profile.stop`` does."""
        if os.environ.get(VARIABLE) == "1":
            self.thread = threading.Thread(target=self._detach, daemon=True)
            self.thread.start()

    def _detach(self) -> None:
        self._called.wait()
        self.is_attached = False

    def _call_runtime(self) -> bool:
        self.calls += 1
        self._called.set()
        return True


@pytest.fixture(autouse=True)
def _environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(VARIABLE, "")  # so that it is restored
    monkeypatch.delenv(VARIABLE)


def close_window(kineto: Kineto, meanwhile: Callable[[], object] = lambda: None) -> CuptiDetachment:
    cupti = CuptiDetachment(kineto)
    cupti.prepare()
    meanwhile()
    cupti.stop(kineto.stop_profiler)
    return cupti


def test_cupti_is_gone_when_the_window_has_ended_and_no_thread_waits() -> None:
    reserve_variable()
    kineto = Kineto()
    cupti = close_window(kineto)
    assert (cupti.is_detached, cupti.attached_because, kineto.is_attached) == (True, None, False)
    assert kineto.calls >= 1
    assert kineto.thread is not None
    assert not kineto.thread.is_alive()


@pytest.mark.parametrize("value", ["0", "1"])
def test_what_the_user_set_stays_theirs(value: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(VARIABLE, value)
    reserve_variable()
    kineto = Kineto()
    cupti = close_window(kineto)
    assert os.environ[VARIABLE] == value
    assert (cupti.is_detached, kineto.is_attached) == (value == "1", value != "1")
    assert (cupti.attached_because is None) == (value == "1")


def test_what_torch_decides_for_cuda_graphs_while_the_window_starts_stays() -> None:
    reserve_variable()
    kineto = Kineto()
    cupti = close_window(kineto, meanwhile=lambda: os.environ.update({VARIABLE: "0"}))
    assert (cupti.is_detached, kineto.is_attached) == (False, True)
    assert cupti.attached_because == f"the environment has {VARIABLE}=0"
    assert os.environ[VARIABLE] == "0"


def test_an_older_cuda_keeps_it_because_of_its_graphs() -> None:
    reserve_variable()
    kineto = Kineto("12.4")
    cupti = close_window(kineto)
    assert (cupti.is_detached, kineto.is_attached) == (False, True)
    assert "CUDA 12.4" in str(cupti.attached_because)
    assert find_obstacle((12, 6), os.environ) is None
    assert find_obstacle((12, 4), {VARIABLE: "1"}) is None, "a user who asks for it gets it"


def test_a_failed_training_ends_without_a_thread_that_waits() -> None:
    reserve_variable()
    kineto = Kineto()
    cupti = CuptiDetachment(kineto)
    cupti.prepare()
    cupti.cancel()
    kineto.stop_profiler()
    assert (kineto.thread, cupti.is_detached) == (None, False)


def test_a_stream_that_records_a_graph_is_not_asked_and_the_wait_is_short(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("perfscope.hooks.profiler.window._LONGEST_WAIT_S", 0.01)
    reserve_variable()
    kineto = Kineto()
    kineto.is_capturing = True
    cupti = close_window(kineto)
    assert (kineto.calls, cupti.is_detached) == (0, False)
    assert "had not detached it" in str(cupti.attached_because)
    kineto.cuda.current_stream().query()  # end the thread


def test_a_stop_that_fails_leaves_no_request_behind() -> None:
    reserve_variable()
    cupti = CuptiDetachment(Kineto())
    cupti.prepare()

    def fail() -> Any:
        raise RuntimeError("broken")

    with pytest.raises(RuntimeError, match="broken"):
        cupti.stop(fail)
    assert os.environ[VARIABLE] != "1"
