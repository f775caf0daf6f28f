"""`perfscope.hooks.attach` gives what `perfscope profile` gives."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest

from perfscope import hooks
from tests.conftest import SCRIPTS, analysis, profile, run

pytestmark = pytest.mark.slow


def keys(value: Any) -> Any:
    """The keys of a JSON document, without its values."""
    if isinstance(value, dict):
        return {key: keys(inner) for key, inner in value.items()}
    return [keys(value[0])] if isinstance(value, list) and value else None


def test_attach_and_profile_give_the_same_count_and_keys(tmp_path: Path) -> None:
    assert run([sys.executable, SCRIPTS / "attached.py"], tmp_path).code == 0
    assert profile(sys.executable, SCRIPTS / "ending.py", "none", "0", cwd=tmp_path).code == 0
    attached, profiled = analysis(tmp_path / "ATTACHED"), analysis(tmp_path / "RUN")
    assert attached["results"]["steps"]["count"] == profiled["results"]["steps"]["count"] == 10
    for results in (attached["results"], profiled["results"]):
        del results["host"]["operators"]
        # Whether ten short steps pause, and where the thread is seen, is chance.
        assert isinstance(results.pop("findings"), list)
        results["loop"] = dict.fromkeys(results["loop"])
    assert keys(attached) == keys(profiled)


def test_below_profile_attach_changes_nothing(tmp_path: Path) -> None:
    assert profile(sys.executable, SCRIPTS / "attached.py", cwd=tmp_path).code == 0
    assert not (tmp_path / "ATTACHED").exists()
    assert analysis(tmp_path / "RUN")["results"]["steps"]["count"] == 10


@pytest.mark.parametrize(
    ("options", "problem"),
    [({"steps": "1-2"}, "warms the profiler up"), ({"step_optimizer": "all"}, "neither the number")],
)
def test_attach_refuses_what_cannot_be(options: dict[str, Any], problem: str, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=problem):
        hooks.attach(str(tmp_path / "run"), **options)
