"""``perfscope whatif`` on real traces: its JSON, its table, and what it refuses."""

from __future__ import annotations

import pytest

from tests.commands.report_cli import run
from tests.conftest import ROOT

BASE = ROOT / "fixtures" / "whatif" / "base"


def test_analyze_gives_the_same_only_where_it_is_named(capsys: pytest.CaptureFixture[str]) -> None:
    document = run(capsys, "analyze", BASE, "--only", "whatif", "--format", "json").data
    alone = run(capsys, "whatif", BASE, "--format", "json").data
    assert document["results"]["whatif"] == {key: alone[key] for key in document["results"]["whatif"]}
    assert "whatif" not in run(capsys, "analyze", BASE, "--format", "json").data["results"]


def test_what_cannot_be_asked_is_one_line(capsys: pytest.CaptureFixture[str]) -> None:
    answer = run(capsys, "whatif", BASE, "--scenario", "magic")
    assert answer.code == 2
    assert answer.err.startswith("perfscope: there is no scenario 'magic'\n")
    assert run(capsys, "whatif", "nowhere").code == 1
