"""What `perfscope analyze` loads and starts before it can read a trace, counted in a process of its own."""

from __future__ import annotations

import json
import os
import sys
from typing import Any

import pytest

from perfscope import cli
from tests.conftest import ROOT, run

TRACE = next((ROOT / "fixtures" / "findings" / "h200" / "clean" / "traces").iterdir())
#: 201 of ours are loaded today; what an input does not need is to be loaded by name, as analyzers are.
MOST_MODULES = 202
PROGRAM = """
import dataclasses, gc, json, os, sys
os.environ.pop("OPENBLAS_NUM_THREADS", None)
made, process_class = [], dataclasses._process_class
def note(kind, *options):
    made.append(f"{kind.__module__}.{kind.__qualname__}")
    return process_class(kind, *options)
dataclasses._process_class = note
from perfscope.cli import main
sys.argv[0] = "perfscope"
try:
    main()
finally:
    counted = {"modules": sorted(sys.modules), "dataclasses": made, "threads": len(os.listdir("/proc/self/task"))}
    counted |= {"frozen": gc.get_freeze_count(), "collects": gc.isenabled()}
    print(json.dumps(counted), file=sys.stderr)
"""


#: Calls in a loop at each of some depths: how many pages the loop that mapped most had to be given.
LOOPS = """
import resource
from perfscope import cli
def call(number):
    return number
def loop():
    before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    for number in range(1000):
        call(number)
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before
def deep(depth):
    return deep(depth - 1) if depth else loop()
def most():
    return max([deep(depth) for depth in range(200)])
print(cli.with_room_for_frames(most))
"""


@pytest.fixture(scope="module")
def started(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """What was loaded and started when a trace of 1 MB had been analyzed."""
    ended = run([sys.executable, "-c", PROGRAM, "analyze", TRACE], cwd=tmp_path_factory.mktemp("start"))
    assert ended.code == 0, ended.stderr
    counted: dict[str, Any] = json.loads(ended.stderr.splitlines()[-1])
    return counted


def test_numpy_starts_no_threads_for_a_trace(started: dict[str, Any]) -> None:
    assert started["threads"] == 1


@pytest.mark.parametrize("typed", [None, "3"])
def test_what_a_command_starts_sees_the_threads_of_the_user(typed: str | None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("OPENBLAS_NUM_THREADS", raising=False)
    if typed is not None:
        monkeypatch.setenv("OPENBLAS_NUM_THREADS", typed)
    group = cli.CommandGroup(name="perfscope")
    assert group.get_command(None, "profile") is not None
    assert os.environ.get("OPENBLAS_NUM_THREADS") == typed


def test_loops_of_a_command_map_no_memory_for_the_frames_of_their_calls() -> None:
    ended = run([sys.executable, "-c", LOOPS], cwd=ROOT)
    assert ended.code == 0, ended.stderr
    assert int(ended.stdout) < 500  # each call of one loop would map a page


def test_no_garbage_is_looked_for_among_modules(started: dict[str, Any]) -> None:
    assert started["collects"]
    assert started["frozen"] > 20_000  # all that NumPy, typer and perfscope consist of


def test_a_small_trace_loads_only_what_it_needs(started: dict[str, Any]) -> None:
    loaded = set(started["modules"])
    assert not loaded & {"pandas", "scipy", "torch", "numpy.ma", "pydantic", "rich", "multiprocessing", "statistics"}
    ours = {name for name in loaded if name.startswith("perfscope.")}
    assert len(ours) <= MOST_MODULES, sorted(ours)
    for package in ("joblog", "memory", "models", "postmortem", "published", "scaling"):
        assert not {name for name in ours if name.startswith(f"perfscope.sources.{package}")}
    assert (
        not {"perfscope.analyzers.wall_clock", "perfscope.analyzers.mfu", "perfscope.page", "perfscope.charts"} & ours
    )


def test_what_every_analysis_loads_makes_no_dataclasses(started: dict[str, Any]) -> None:
    # Hooks and `perfscope tflops` load these, which load nothing that is not in the standard library for them.
    apart = ("perfscope.wire", "perfscope.report", "perfscope.renderers", "perfscope.outcome")
    ours = [name for name in started["dataclasses"] if name.startswith("perfscope.") and not name.startswith(apart)]
    assert ours == ["perfscope.sources.traces.scan.Scanner"]
