"""A step of this process against a saved baseline: what passes, what fails, and what is refused."""

from __future__ import annotations

import json
import time
from pathlib import Path

import pytest

from perfscope.engine.step_baseline import StepBaseline
from perfscope.errors import PerfscopeError, UsageError


def step() -> None:
    time.sleep(0.002)


def slow_step() -> None:
    time.sleep(0.04)


@pytest.fixture
def baseline(tmp_path: Path) -> StepBaseline:
    """Comparing, with a saved baseline of ``step``."""
    assert StepBaseline(tmp_path, is_update=True).check(step, "saved/step.json", steps=40) is None
    return StepBaseline(tmp_path)


def test_the_same_step_passes(baseline: StepBaseline) -> None:
    comparison = baseline.check(step, "saved/step.json", steps=40, fail_on=("step_time>+800%",))
    assert comparison is not None
    assert comparison.changes


def test_a_slower_step_fails_with_the_change(baseline: StepBaseline) -> None:
    with pytest.raises(AssertionError, match=r"slower \(interval.*\n.*step_time>\+30% is exceeded"):
        baseline.check(slow_step, "saved/step.json", steps=40, fail_on=("step_time>+30%",))


def test_a_baseline_of_another_device_fails(baseline: StepBaseline) -> None:
    path = baseline.root / "saved" / "step.json"
    saved = json.loads(path.read_text())
    saved["setup"]["device"] = "NVIDIA H200"
    path.write_text(json.dumps(saved))
    with pytest.raises(AssertionError, match="was saved on NVIDIA H200"):
        baseline.check(step, "saved/step.json", steps=5)


def test_what_cannot_be_compared_is_an_error_of_the_user(baseline: StepBaseline) -> None:
    with pytest.raises(UsageError, match="there is no baseline"):
        baseline.check(step, "nowhere.json", steps=5)
    with pytest.raises(UsageError, match="is no limit"):
        baseline.check(step, "saved/step.json", steps=5, fail_on=("quick",))
    with pytest.raises(UsageError, match="0 steps"):
        baseline.check(step, "saved/step.json", steps=0)
    path = baseline.root / "saved" / "step.json"
    path.write_text(path.read_text().replace("perfscope/baseline/1", "perfscope/baseline/9"))
    with pytest.raises(PerfscopeError, match="perfscope/baseline/9"):
        baseline.check(step, "saved/step.json", steps=5)


def test_a_limit_alone_is_a_limit_and_one_that_cannot_be_checked_is_said(baseline: StepBaseline) -> None:
    with pytest.raises(AssertionError, match=r"step_time>\+30% is exceeded"):
        baseline.check(slow_step, "saved/step.json", steps=40, fail_on="step_time>+30%")
    with pytest.warns(UserWarning, match="memory>5%: not checked"):
        baseline.check(step, "saved/step.json", steps=5, fail_on="memory>5%")
    with pytest.warns(UserWarning, match="cannot tell"):
        baseline.check(step, "saved/step.json", steps=1, fail_on="step_time>+30%")
