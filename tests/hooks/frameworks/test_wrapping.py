"""A hook runs around a framework's function, and whatever happens in it the function does what it always did."""

from __future__ import annotations

import subprocess
import sys
from collections import Counter
from collections.abc import Generator
from importlib import import_module
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from perfscope.frameworks import FRAMEWORK_HOOKS, STEP_BOUNDARIES, WATCHED, FrameworkHooks
from perfscope.hooks import start
from perfscope.hooks.capture import Capture
from perfscope.hooks.config import Config
from perfscope.hooks.frameworks.torchtitan import patch_trainer
from perfscope.hooks.frameworks.wrapping import argument, time_passes, wrap_functions, wrap_saves
from perfscope.hooks.selection import parse_windows
from perfscope.hooks.start import LateCapture
from tests.conftest import ROOT

Running = Generator[None, Any, None]


class Engine:
    """A framework's class."""

    def step(self, size: int, *, scale: int = 1) -> int:
        if size < 0:
            raise ValueError("the framework's own")
        return size * scale

    @staticmethod
    def double(number: int) -> int:
        return 2 * number


@pytest.fixture
def engine() -> type[Engine]:
    """A new class, because its functions are wrapped for good."""
    return type("Engine", (Engine,), dict(vars(Engine)))


@pytest.fixture
def capture(tmp_path: Path) -> Capture:
    return Capture(Config(str(tmp_path), parse_windows("4-6"), nvml_hz=0))


def test_what_stands_ahead_of_the_yield_runs_before_and_the_rest_after(engine: type[Engine], capture: Capture) -> None:
    events: list[object] = []

    def step(engine: Engine, size: int, **options: int) -> Running:
        events.append(("before", size, options))
        result = yield
        events.append(("after", result))

    wrap_functions(engine, capture, {"step": step})
    assert engine().step(3, scale=2) == 6
    assert events == [("before", 3, {"scale": 2}), ("after", 6)]
    assert engine.step.__name__ == "step"


def test_an_exception_of_the_function_closes_the_hook_and_stays_its_own(engine: type[Engine], capture: Capture) -> None:
    events: list[str] = []

    def step(*_args: object) -> Running:
        try:
            yield
            events.append("after")
        finally:
            events.append("closed")

    wrap_functions(engine, capture, {"step": step})
    with pytest.raises(ValueError, match="the framework's own"):
        engine().step(-1)
    assert events == ["closed"]
    assert not capture.dead


@pytest.mark.parametrize("when", ["before", "after", "never yields", "other arguments"])
def test_a_hook_that_fails_changes_nothing_of_the_call(
    when: str, engine: type[Engine], capture: Capture, capsys: pytest.CaptureFixture[str]
) -> None:
    def step(*_args: object) -> Running:
        if when == "never yields":
            return
        if when == "before":
            raise RuntimeError("broken")
        yield
        raise RuntimeError("broken")

    def without_arguments() -> Running:
        yield

    wrap_functions(engine, capture, {"step": without_arguments if when == "other arguments" else step})
    assert [engine().step(number) for number in (1, 2)] == [1, 2]
    assert capture.dead == (when != "never yields")
    assert capsys.readouterr().err.count("training goes on") == int(capture.dead)


def test_where_one_function_is_missing_none_is_wrapped(engine: type[Engine], capture: Capture) -> None:
    def hook(*_args: object) -> Running:
        yield

    with pytest.raises(AttributeError, match="moved"):
        wrap_functions(engine, capture, {"step": hook, "moved": hook})
    assert engine.step is Engine.step


def test_a_pass_goes_around_a_call_and_ends_where_the_call_raises(engine: type[Engine], capture: Capture) -> None:
    ended: list[object] = []
    vars(capture)["on_pass_end"] = ended.append

    def begin(_engine: Engine, size: int, **_options: int) -> Any:
        return None if size == 0 else f"pass {size}"

    engine.step = time_passes(engine.step, capture, begin, is_forward=True)  # type: ignore[method-assign]
    assert (engine().step(2, scale=3), engine().step(0)) == (6, 0)
    with pytest.raises(ValueError, match="the framework's own"):
        engine().step(-1)
    assert ended == ["pass 2", "pass -1"]


def test_a_failure_to_begin_a_pass_ends_the_capture_and_not_the_call(engine: type[Engine], capture: Capture) -> None:
    def begin(_engine: Engine, size: int) -> Any:
        raise RuntimeError(f"hook {size}")

    engine.step = time_passes(engine.step, capture, begin, is_forward=True)  # type: ignore[method-assign]
    assert engine().step(2) == 2
    assert capture.dead


def test_a_save_before_training_does_not_begin_the_capture(engine: type[Engine], capture: Capture) -> None:
    timers: list[object] = []

    def step(timer: object, *_args: object) -> Running:
        timers.append(timer)
        yield

    late: Any = LateCapture()
    wrap_saves(engine, late, {"step": step})
    assert engine().step(1) == 1
    assert (late.capture, timers) == (None, [])
    late.capture = capture
    assert engine().step(1) == 1
    assert timers == [capture.save_timer]


def test_an_argument_is_found_wherever_a_version_puts_it() -> None:
    old, new = (lambda model, data: None), (lambda data, model=None: None)
    calls: list[tuple[Any, tuple[str, ...], dict[str, object]]]
    calls = [(old, ("m", "d"), {}), (new, ("d", "m"), {}), (new, ("d",), {"model": "m"})]
    assert [argument(function, "model", args, kwargs) for function, args, kwargs in calls] == ["m"] * 3
    assert argument(new, "model", ("d",), {}) is None
    assert argument(SimpleNamespace(), "model", ("d",), {}) is None


class Recorded:
    """What the patches report to."""

    def __init__(self) -> None:
        self.seen: list[Any] = []
        self.steps = 0

    def run_guarded(self, action: Any, *args: Any, **kwargs: Any) -> Any:
        return action(*args, **kwargs)

    def __getattr__(self, name: str) -> Any:
        return lambda *args, **kwargs: self.seen.append((name, args, kwargs))


@pytest.mark.slow
@pytest.mark.parametrize("name", sorted(WATCHED.keys() - {"torch"}))  # of torch itself nothing is patched
def test_a_function_that_moved_turns_its_feature_off_and_says_so(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    module: Any = SimpleNamespace()
    start.patch_module(WATCHED[name], name, module, Recorded())
    message = capsys.readouterr().err
    assert f"is off: this version of {name} differs" in message
    assert vars(module) == {}


@pytest.mark.slow
def test_torchtitan_s_trainer() -> None:
    class Trainer:
        model_parts = ("part",)
        gradient_accumulation_steps, num_pp_microbatches, step = 2, 4, 101

        def train_step(self, data_iterator: object) -> str:
            return "as before"

    capture = Recorded()
    patch_trainer(SimpleNamespace(Trainer=Trainer), capture)  # type: ignore[arg-type]
    trainer = Trainer()
    assert trainer.train_step(None) == "as before"
    reports = {name: (args, kwargs) for name, args, kwargs in capture.seen}
    assert list(reports) == ["arm", "on_step_begin", "set_model", "on_step_end"]
    assert reports["on_step_end"] == (("torchtitan", trainer), {"micro_batches": 8, "iteration": 101})


SHARED = {"__init__", "optimizer_steps", "wrapping"}


@pytest.mark.parametrize("hooks", FRAMEWORK_HOOKS, ids=lambda hooks: hooks.file)
def test_a_file_patches_what_its_entry_watches(hooks: FrameworkHooks) -> None:
    patches = import_module(f"perfscope.hooks.frameworks.{hooks.file}").PATCHES
    assert sorted(patches) == sorted(hooks.watches)
    assert all(patches.values())


def test_every_file_has_an_entry() -> None:
    files = {file.stem for file in (ROOT / "hooks" / "frameworks").glob("*.py")} - SHARED
    assert Counter(hooks.file for hooks in FRAMEWORK_HOOKS) == Counter(files)


def test_every_file_that_watches_a_module_patches_it_and_no_boundary_has_the_priority_of_another() -> None:
    assert Counter((module, file) for module, files in WATCHED.items() for file in files) == Counter(
        (module, hooks.file) for hooks in FRAMEWORK_HOOKS for module in hooks.watches
    )
    assert WATCHED["transformers.trainer"] == ("library_saves",)
    assert all(len(files) == len(set(files)) for files in WATCHED.values())
    assert len(STEP_BOUNDARIES) == sum(len(hooks.boundaries) for hooks in FRAMEWORK_HOOKS)
    assert len({boundary.priority for boundary in STEP_BOUNDARIES.values()}) == len(STEP_BOUNDARIES)


def test_the_table_imports_nothing() -> None:
    script = (
        "import importlib.util, sys\n"
        "before = set(sys.modules)\n"
        f"spec = importlib.util.spec_from_file_location('table', {str(ROOT / 'perfscope' / 'frameworks.py')!r})\n"
        "spec.loader.exec_module(importlib.util.module_from_spec(spec))\n"
        "assert set(sys.modules) == before, set(sys.modules) - before\n"
    )
    subprocess.run([sys.executable, "-S", "-c", script], check=True, timeout=60)
