"""A run comes together by its partials, and traces come when somebody asks for them."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest

from perfscope.commands.collect import collect
from perfscope.engine.analysis_report import to_report
from perfscope.engine.run import Plan, analyze
from perfscope.renderers import Format, render
from tests.conftest import ROOT
from tests.engine.storing import copy_with_partials

NODES = ROOT / "fixtures" / "nodes"
LIGHT = ROOT / "fixtures" / "light" / "host_bound"


@pytest.fixture
def parts(tmp_path: Path) -> list[Path]:
    return [copy_with_partials(NODES / name, tmp_path) for name in ("node1", "node2")]


def bring(parts: list[Path], into: Path, **options: Any) -> dict[str, Any]:
    outcome = collect([str(part) for part in parts], into, format=Format.JSON, **options)
    assert outcome.report is not None
    data: dict[str, Any] = json.loads(render(outcome.report, Format.JSON))
    return data


def names(run: Path) -> list[str]:
    return sorted(path.name.partition("_")[0] for path in (run / "traces").rglob("*.gz"))


def answer(run: Path) -> list[str]:
    plan = Plan(only=frozenset({"steps", "breakdown", "host", "overlap", "idle", "collectives", "stragglers"}))
    return [render(to_report(analyze([run], plan)), to) for to in Format]


def test_a_run_of_partials_alone_gives_the_answers_of_its_traces(parts: list[Path], tmp_path: Path) -> None:
    data = bring(parts, tmp_path / "run")
    expected = answer(tmp_path / "run")
    assert [part["left_traces"] for part in data["parts"]] == [0, 0]
    shutil.rmtree(tmp_path / "run")
    data = bring(parts, tmp_path / "run", traces="none")
    assert names(tmp_path / "run") == []
    assert [part["left_traces"] for part in data["parts"]] == [1, 1]
    assert answer(tmp_path / "run") == expected


def test_traces_come_when_somebody_asks_for_them(parts: list[Path], tmp_path: Path) -> None:
    run = tmp_path / "run"
    bring(parts, run, traces="none")
    partials = {path.name: path.read_bytes() for path in run.rglob("*.partials")}
    data = bring(parts, run, traces="1")
    assert names(run) == ["node2"]
    assert [part["left_traces"] for part in data["parts"]] == [1, 0]
    bring(parts, run, traces="1,5-7")
    assert names(run) == ["node2"]
    bring(parts, run, traces="all")
    assert names(run) == ["node1", "node2"]
    assert {path.name: path.read_bytes() for path in run.rglob("*.partials")} == partials
    assert not analyze([run]).damage


def test_a_trace_without_partials_comes_along(parts: list[Path], tmp_path: Path) -> None:
    next(parts[0].rglob("*.partials")).unlink()
    content = next(parts[1].rglob("*.partials"))
    content.write_bytes(content.read_bytes()[:-9])
    data = bring(parts, tmp_path / "run", traces="none")
    assert names(tmp_path / "run") == ["node1", "node2"]
    assert [part["left_traces"] for part in data["parts"]] == [0, 0]
