"""A version of a framework that moved a function: that feature is off, says so, and the module stays as it was."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from perfscope.frameworks import WATCHED
from perfscope.hooks import start
from perfscope.hooks.frameworks.torchtitan import patch_trainer

pytestmark = pytest.mark.slow


class Recorded:
    """What the patches report to."""

    def __init__(self) -> None:
        self.seen: list[Any] = []
        self.steps = 0

    def run_guarded(self, action: Any, *args: Any, **kwargs: Any) -> Any:
        return action(*args, **kwargs)

    def __getattr__(self, name: str) -> Any:
        return lambda *args, **kwargs: self.seen.append((name, args, kwargs))


@pytest.mark.parametrize("name", sorted(WATCHED.keys() - {"torch"}))  # of torch itself nothing is patched
def test_a_function_that_moved_turns_its_feature_off_and_says_so(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    module: Any = SimpleNamespace()
    start.patch_module(WATCHED[name], name, module, Recorded())
    message = capsys.readouterr().err
    assert f"is off: this version of {name} differs" in message
    assert vars(module) == {}


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
