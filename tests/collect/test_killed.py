"""A `collect` that was killed at any of its steps is completed by the next one, as if nothing had been."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from perfscope.commands.collect import collect
from perfscope.renderers import Format
from perfscope.wire import COLLECTED_FILE
from tests.collect.test_collect import part
from tests.conftest import ROOT
from tests.dying import kill_at_each_step, kill_at_size
from tests.engine.storing import copy_with_partials

NODES = ROOT / "fixtures" / "nodes"

Folder = Callable[[Path], object]

pytestmark = pytest.mark.slow  # hundreds of processes


@pytest.fixture(autouse=True)
def _no_waiting_for_the_disk(monkeypatch: pytest.MonkeyPatch) -> None:
    """What a process wrote before it was killed is there: only the end of a machine would need more."""
    monkeypatch.setattr(os, "fsync", lambda _: None)


def bring(root: Path, *names: str, **options: Any) -> None:
    collect([str(root / name) for name in names], root / "run", None, Format.JSON, **options)


def two_hosts(root: Path) -> None:
    part(root / "a", "node1", [0, 1], described=True)
    part(root / "b", "node2", [2, 3])


def a_restart_on_a_third_host(root: Path) -> None:
    """The process that is collected last stands between the two others, whose folders get other numbers."""
    for name, host, began_s in (("a", "node1", 0), ("b", "node2", 100), ("c", "node3", 50)):
        part(root / name, host, [0, 1], described=name == "a", began_s=began_s, steps=5)
    bring(root, "b", "a")


def a_run_that_went_on(root: Path) -> None:
    part(root / "a", "node1", [0, 1], described=True, steps=5)
    bring(root, "a")
    shutil.rmtree(root / "a")
    part(root / "a", "node1", [0, 1], described=True, steps=15)


def partials_of_two_hosts(root: Path) -> None:
    for name in ("node1", "node2"):
        copy_with_partials(NODES / name, root)


def contents(run: Path) -> dict[str, bytes]:
    """All that the run holds, but the report on how it came together, and what nobody reads."""
    paths = (path for path in sorted(run.rglob("*")) if path.is_file())
    names = {path.relative_to(run).as_posix(): path for path in paths}
    return {
        name: path.read_bytes() for name, path in names.items() if name != COLLECTED_FILE and "/." not in f"/{name}"
    }


@pytest.mark.parametrize(
    ("prepare", "names"),
    [(two_hosts, "ab"), (a_restart_on_a_third_host, "c"), (a_run_that_went_on, "a")],
)
def test_a_run_is_complete_after_the_next_collect(tmp_path: Path, prepare: Folder, names: str) -> None:
    require_same(prepare, lambda root: bring(root, *names), tmp_path)


@pytest.mark.parametrize("traces", [None, "1"])
def test_partials_and_traces_are_complete_after_the_next_collect(tmp_path: Path, traces: str | None) -> None:
    def work(root: Path) -> None:
        bring(root, "node1", "node2", traces=traces or "none")

    require_same(partials_of_two_hosts, work, tmp_path)


def require_same(prepare: Folder, work: Folder, folder: Path) -> None:
    """Whatever kills the work, the same work again leaves what it leaves undisturbed."""
    prepare(fresh := folder / "undisturbed")
    work(fresh)
    expected = contents(fresh / "run")

    def complete() -> None:
        work(folder / "tried")
        assert contents(folder / "tried" / "run") == expected
        assert not list((folder / "tried").glob(".*"))
        shutil.rmtree(folder / "tried")
        shutil.copytree(folder / "before", folder / "tried")

    prepare(folder / "before")
    shutil.copytree(folder / "before", folder / "tried")
    kills = 0
    for _ in kill_at_each_step(lambda: work(folder / "tried")):
        complete()
        kills += 1
    assert kills > 30
    complete()
    largest = max(len(content) for content in expected.values())
    for size in range(1, largest, max(1, largest // 10)):
        assert kill_at_size(lambda: work(folder / "tried"), size)
        complete()
