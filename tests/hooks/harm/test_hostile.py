"""Scripts that look at all that is around them see no difference, but what ``docs/profile.md`` states."""

from __future__ import annotations

import re
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from tests.conftest import SCRIPTS, Ended, profile, run

pytestmark = pytest.mark.slow

#: The first of these train one after the other in one process.
TOGETHER = (
    "descriptors_closed_and_used_again", "traced_between_steps", "seen_by_modes_and_classes_of_tensors",
    "threads_joined_and_children_awaited", "pickled_by_value", "methods_and_properties_that_raise", "own_profilers",
)  # fmt: skip
ALONE = (
    "alarms_that_raise", "interrupts_around_a_window", "thread_for_each_step", "no_rights_in_a_window",
    "two_interrupts_at_the_end",
)  # fmt: skip


def seen(ended: Ended) -> tuple[int, str, list[str]]:
    """What a user sees, without what differs each time."""
    plain = re.sub(r"\d\d\d\d-\d\d-\d\d [\d:]+ [\d:]+|line \d+", "N", ended.stderr)
    return ended.code, ended.stdout, [line for line in plain.splitlines() if not line.startswith("perfscope: ")]


@pytest.mark.parametrize(
    "names",
    [TOGETHER, *(pytest.param((name,), marks=pytest.mark.full) for name in (*TOGETHER, *ALONE))],
    ids=lambda names: "together" if len(names) > 1 else names[0],
)
def test_a_script_sees_what_it_sees_without_perfscope(names: tuple[str, ...], tmp_path: Path) -> None:
    words: list[str | Path] = [sys.executable, SCRIPTS / "hostile.py", *names]
    for folder in ("alone", "captured"):
        (tmp_path / folder).mkdir()
    with ThreadPoolExecutor(2) as pool:
        alone = pool.submit(run, words, tmp_path / "alone")
        options = ["--steps", "4-5", "--exec"]
        captured = pool.submit(profile, *words, cwd=tmp_path / "captured", options=options)
    assert seen(captured.result()) == seen(alone.result())
