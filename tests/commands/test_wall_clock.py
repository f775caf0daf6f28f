"""The wall clock of real trainings, against what their script measures of itself; and their clean twin."""

from __future__ import annotations

import json
import re
import sys
from functools import cache
from pathlib import Path
from tempfile import mkdtemp
from typing import Any

import pytest

from perfscope.constants import NS_PER_S
from tests.conftest import SCRIPTS, analysis, profile

pytestmark = pytest.mark.slow

#: What a measurement may differ by, as a share of itself and of the script's own time: more on a busy machine.
LEEWAY, LEEWAY_OF_ALL = 0.1, 0.25


@cache
def results(words: str) -> tuple[dict[str, Any], dict[str, float], str]:
    """The results of a training with these parts, the seconds that the script measured, and the summary's text."""
    folder = Path(mkdtemp(prefix="perfscope-wall-"))
    ended = profile(sys.executable, SCRIPTS / "wall_clock.py", *words.split(), cwd=folder)
    assert ended.code == 0, ended.stderr
    truth = json.loads(ended.stdout.splitlines()[-1])
    found: dict[str, Any] = analysis(folder / "RUN")["results"]
    return found, {name: value / NS_PER_S for name, value in truth.items()}, ended.stderr


def leeway_s(words: str) -> float:
    """What a part may differ by, by the time that the script took on this machine."""
    truth = results(words)[1]
    return LEEWAY_OF_ALL * (truth["ended_ns"] - truth["begun_ns"])


def parts(words: str) -> dict[str, float]:
    """The parts of rank 0 in seconds, whose whole is asserted."""
    (rank,) = results(words)[0]["wall_clock"]["ranks"]
    known = {part: part_ns for part, part_ns in rank["parts_ns"].items() if part_ns is not None}
    assert all(type(part_ns) is int and part_ns >= 0 for part_ns in known.values())
    assert sum(known.values()) == rank["wall_ns"]
    assert rank["start_recorded"]
    assert rank["end_recorded"]
    return {part: part_ns / NS_PER_S for part, part_ns in known.items()}


def causes(words: str) -> dict[int, str]:
    """The slowest steps with their causes."""
    return {step["step"]: step["cause"] for step in results(words)[0]["wall_clock"]["slowest_steps"]}


def test_a_clean_training_has_none_of_the_parts() -> None:
    clean = parts("")
    assert not any(clean[part] for part in ("validation", "generation", "saves", "compilation"))
    assert clean["data_wait"] + clean["between_steps"] < leeway_s("")
    assert not {"validation", "generation", "checkpoint save", "compilation"} & set(causes("").values())
    _, truth, said = results("")
    assert sum(clean.values()) > truth["ended_ns"] - truth["begun_ns"]
    assert clean["imports"] > 0
    assert "wall clock of rank 0" in said


@pytest.mark.parametrize("words", ["bare_validation", "validation saves logging"])
def test_a_validation_is_found_and_is_no_part_of_the_steps(words: str) -> None:
    found, truth, _ = results(words)
    clock = parts(words)
    validated = clock["validation"] + clock["validation_data_wait"]
    # Behind a save the script may do anything: figures that it puts together before one are not told from that.
    apart = 0.06 if "saves" in words else 0
    assert validated == pytest.approx(truth["validation_ns"] - apart, rel=LEEWAY, abs=leeway_s(words))
    assert found["steps"]["median_s"] < truth["validation_ns"] / 4  # one of two has 20 batches, a step has one
    if words != "validation saves logging":
        assert {causes(words).get(step) for step in (9, 13)} == {"validation"}


def test_saves_and_other_time_between_steps_are_told_apart() -> None:
    found, truth, _ = results("validation saves logging")
    clock = parts("validation saves logging")
    assert 0 < clock["saves"] <= truth["save_ns"]
    other = truth["other_ns"] + (truth["save_ns"] - clock["saves"]) + 0.06
    assert clock["between_steps"] == pytest.approx(other, rel=LEEWAY, abs=leeway_s("validation saves logging"))
    assert 0 < found["saves"]["blocked_share"] < 1


def test_a_slow_loader_is_a_wait_for_data() -> None:
    _, truth, said = results("loading")
    clock = parts("loading")
    assert clock["data_wait"] == pytest.approx(truth["loading_ns"], rel=LEEWAY, abs=leeway_s("loading"))
    assert clock["between_steps"] < leeway_s("loading")
    assert re.search(r"profiled steps of rank 0, [^:]*: data loading ", said)  # the largest share comes first
