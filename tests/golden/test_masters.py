"""The answers of today are those whose digests are stored; ``python -m tests.golden.masters`` stores new ones."""

from __future__ import annotations

import json
from functools import cache

import pytest

from tests.golden.masters import DIGESTS, Case, analyzed_once, cases, digest

_GROUPS = (
    "analyze/findings",
    "analyze/real_runs",
    "analyze/runs",
    "analyze/",
    "checkpoint/",
    "postmortem/",
    "logs/foreign_logs",
    "logs/published_logs",
    "",
)


def group_of(case: Case) -> str:
    return next(group for group in _GROUPS if case.name.startswith(group))


@cache
def stored() -> dict[str, str]:
    read: dict[str, str] = json.loads(DIGESTS.read_text())
    return read


def test_each_case_has_a_digest_and_each_digest_a_case() -> None:
    assert sorted(case.name for case in cases()) == sorted(stored())


@pytest.mark.parametrize("group", _GROUPS)
def test_answers_are_those_of_before(group: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "120")
    of_group = [case for case in cases() if group_of(case) == group]
    with analyzed_once():
        changed = [case.name for case in of_group if digest(case.answer()) != stored().get(case.name)]
    assert not changed  # `python -m tests.golden.masters FOLDER`, here and on the commit before, shows what changed
