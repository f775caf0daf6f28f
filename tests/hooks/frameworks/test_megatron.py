"""Megatron: its own core on CPU ranks, and a training loop with the names and results of Megatron-LM's."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from perfscope.hooks.frameworks.megatron import patch_training
from tests.conftest import analysis, step_lines
from tests.hooks.frameworks.running import field, layout, parameters, torchrun

pytestmark = pytest.mark.slow

#: Of the whole model: embedding 128 x 32, positions 16 x 32, 4 layers of 12,704, the last norm 64.
WHOLE = 128 * 32 + 16 * 32 + 4 * 12_704 + 64


@pytest.fixture
def long_enough(monkeypatch: pytest.MonkeyPatch) -> None:
    """Trainings of 13 steps: with a window in them, a shorter one has too few for a step time."""
    monkeypatch.setenv("STEPS", "13")


@pytest.mark.usefixtures("long_enough")
def test_interleaved_stages_of_a_pipeline(tmp_path: Path) -> None:
    run = torchrun(2, "megatron_core.py", "train", "1", "2", "2", cwd=tmp_path)
    for rank in (0, 1):
        lines = step_lines(run, f"{rank:05d}")
        assert [(line["step"], line["iteration"]) for line in lines] == [(n, 100 + n) for n in range(1, 14)]
        assert field(run, rank, "source") == {"megatron"}
        work = [field(run, rank, name) for name in ("micro_batches", "samples", "tokens", "global_samples")]
        assert work == [{4}, {8}, {128}, {8}]
        assert layout(run, rank) == ({"dp": 0, "pp": rank, "tp": 0}, {"dp": 1, "pp": 2, "tp": 1, "vp": 2})
    assert sum(parameters(run)) == WHOLE
    results = analysis(run)["results"]
    assert results["steps"]["count"] == 13
    assert results["mfu"]["parameters"] == WHOLE
    assert results["mfu"]["layers"] == 4
    for name in ("pipeline_steps", "pipeline_bubble"):
        assert (results[name]["schedule"], results[name]["microbatches"], results[name]["p"]) == ("interleaved", 4, 2)


@pytest.mark.usefixtures("long_enough")
def test_tensor_parallel_ranks_add_up_to_the_model(tmp_path: Path) -> None:
    run = torchrun(2, "megatron_core.py", "train", "2", "1", "1", cwd=tmp_path)
    first, second = parameters(run)
    assert first + second == WHOLE
    assert first > second, "norms, positions and some biases are held alike by both, and counted by the first"
    assert [layout(run, rank)[0] for rank in (0, 1)] == [{"dp": 0, "pp": 0, "tp": tp} for tp in (0, 1)]
    results = analysis(run)["results"]
    assert results["mfu"]["parameters"] == WHOLE
    # Both ranks work on the same 128 tokens.
    assert results["steps"]["tokens_per_step"] == 128


def test_a_loop_of_one_s_own_has_the_steps_of_megatron_s_optimizer(tmp_path: Path) -> None:
    run = torchrun(1, "megatron_core.py", "own_loop", "1", "1", "1", cwd=tmp_path)
    assert len(step_lines(run)) == 8
    work = [field(run, 0, name) for name in ("source", "micro_batches", "samples", "tokens")]
    assert work == [{"megatron_optimizer"}, {4}, {8}, {128}]
    assert parameters(run) == [WHOLE]


class _Capture:
    def __init__(self) -> None:
        self.steps: list[dict[str, Any]] = []

    def run_guarded(self, action: Any, *args: Any, **kwargs: Any) -> Any:
        return action(*args, **kwargs)

    def arm(self, source: str) -> None: ...

    def on_step_begin(self) -> None: ...

    def on_step_end(self, source: str, emitter: object, **stated: Any) -> None:
        self.steps.append({"source": source, **stated})


@pytest.mark.parametrize(
    ("result", "steps"),
    [
        (({}, 0, 1.0, None), [{"skipped": False}]),
        (({}, 1, None, None), [{"skipped": True}]),
        (({}, 0, False, False, 0, 1.0, None, 0.0), [{"skipped": False}]),
        (({}, True, False, True, 16, None, None, 0), []),
    ],
    ids=["core 0.9", "an overflow", "core 0.20", "leaves before the update"],
)
def test_what_train_step_returns_in_different_versions(result: Any, steps: list[dict[str, Any]]) -> None:
    module: Any = SimpleNamespace(train_step=lambda *_: result)
    capture: Any = _Capture()
    patch_training(module, capture)
    assert module.train_step(None, None, None, None, None, None) is result
    assert [{"skipped": step["skipped"]} for step in capture.steps] == steps
