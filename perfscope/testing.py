"""A plugin of pytest: the fixture ``training_baseline`` compares a training step with a saved baseline.

::

    def test_step_time(training_baseline):
        training_baseline(train_step, "baselines/step.json", fail_on=["step_time>+5%"])

``pytest --perfscope-update`` saves the baselines. pytest finds the plugin by its entry point; what measures and
compares is loaded when a test asks for the fixture, so that other tests do not wait for it.
"""

from __future__ import annotations

from collections.abc import Callable
from importlib import import_module

import pytest

_MEASURING = "perfscope.engine.step_baseline"

#: Takes the step, the path of the baseline, and the keywords of ``perfscope.engine.step_baseline.StepBaseline.check``.
TrainingBaseline = Callable[..., object]


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add the option that saves baselines."""
    parser.getgroup("perfscope").addoption(
        "--perfscope-update", action="store_true", help="Save the baselines of training_baseline instead of comparing."
    )


@pytest.fixture
def training_baseline(request: pytest.FixtureRequest) -> TrainingBaseline:
    """Compare a training step with a saved baseline; the test fails where a limit is exceeded."""
    check: TrainingBaseline = (
        import_module(_MEASURING)
        .StepBaseline(root=request.config.rootpath, is_update=bool(request.config.getoption("--perfscope-update")))
        .check
    )
    return check
