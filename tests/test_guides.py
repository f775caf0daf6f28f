"""Each guide of CONTRIBUTING, followed to the letter in a copy of the tree."""

from __future__ import annotations

import json
import shutil
import sys
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.conftest import ROOT, Ended, perfscope, run, step_lines

TRACE = "fixtures/traces/single/rank0.pt.trace.json.gz"
RUN = "fixtures/findings/h200/clean"


@dataclass(frozen=True)
class Tree:
    """A copy of the source folders; the folders of fixtures and tests are links."""

    root: Path

    def add_file(self, path: str, text: str) -> None:
        """Write a new file; a guide that promises a new file must not overwrite one."""
        target = self.root / path
        assert not target.exists(), f"{path} exists already"
        target.parent.mkdir(exist_ok=True)
        target.write_text(text)

    def add_line(self, path: str, line: str, *, before: str) -> None:
        """Insert a line before the only line that holds a text, indented as that line is."""
        target = self.root / path
        lines = target.read_text().splitlines()
        (row,) = [row for row, existing in enumerate(lines) if before in existing]
        indent = lines[row][: len(lines[row]) - len(lines[row].lstrip())]
        lines.insert(row, indent + line)
        target.write_text("\n".join(lines) + "\n")

    def perfscope(self, *words: str | Path) -> Ended:
        """Run the copy's command line in its folder."""
        ended = perfscope(*words, cwd=self.root, PYTHONPATH=str(self.root))
        assert ended.code == 0, ended.stderr
        return ended

    def python(self, program: str) -> str:
        """What a program prints that imports the copy."""
        ended = run([sys.executable, "-c", program], self.root, PYTHONPATH=str(self.root))
        assert ended.code == 0, ended.stderr
        return ended.stdout


@pytest.fixture
def tree(tmp_path: Path) -> Tree:
    """A fresh copy of the tree."""
    for folder in ("perfscope", "analyzers", "hooks"):
        shutil.copytree(ROOT / folder, tmp_path / folder, symlinks=True, ignore=shutil.ignore_patterns("__pycache__"))
    for folder in ("fixtures", "tests"):
        (tmp_path / folder).symlink_to(ROOT / folder)
    return Tree(tmp_path)


ANALYZER = '''\
"""How many kernels each trace holds."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated

from perfscope.result import Column, Doc, Figures, Result, Table
from perfscope.tables.trace import Trace


class DeviceKernels(Figures, frozen=True):
    """The kernels of one trace."""

    kernels: Annotated[int, Doc("How many the trace holds.")]


class KernelCount(Result, frozen=True):
    """``results.toy``: how many kernels the traces hold."""

    traces: Annotated[tuple[DeviceKernels, ...], Doc("Each trace.")]
    kernels: Annotated[int, Doc("Kernels of all of them.")]

    TABLES = (Table("Toy", "traces", (Column("Kernels", "kernels"),)),)


def measure(trace: Trace) -> int:
    """The kernels of one trace."""
    return len(trace.device)


def analyze(partials: Sequence[int]) -> KernelCount:
    """The kernels of all traces."""
    return KernelCount(tuple(map(DeviceKernels, partials)), sum(partials))
'''


def test_a_new_file_and_one_line_add_an_analyzer(tree: Tree) -> None:
    tree.add_file("analyzers/toy.py", ANALYZER)
    line = '_own("toy", Reads.TRACES),'
    tree.add_line("perfscope/engine/registry.py", line, before='_own("breakdown"')
    assert "## Toy" in tree.perfscope("analyze", "--only", "toy", TRACE).stdout
    results = json.loads(tree.perfscope("analyze", "--format", "json", TRACE).stdout)["results"]
    assert results["toy"]["kernels"] == results["breakdown"]["ranks"][0]["device_events"] > 0
    program = (
        f"import perfscope; run = perfscope.open({TRACE!r}); print(run.results.toy.kernels, len(run.frame('toy')))"
    )
    assert tree.python(program).split() == [str(results["toy"]["kernels"]), "1"]


def test_a_field_and_a_column_add_a_figure(tree: Tree) -> None:
    field = 'idle_share = InUnit("idle", 1, "Idle time of the gaps over their device time.", per="duration")'
    tree.add_line("analyzers/optimizer.py", field, before="device_us = InUnit(")
    column = 'Column("Idle share", "idle_share", None, 3),'
    tree.add_line("analyzers/optimizer.py", column, before='Column("Gaps (ms)"')
    assert "| Idle share |" in " ".join(tree.perfscope("analyze", "--only", "optimizer", RUN).stdout.split())
    printed = tree.perfscope("analyze", "--only", "optimizer", "--format", "json", RUN).stdout
    share = json.loads(printed)["results"]["optimizer"]["ranks"][0]["idle_share"]
    program = f"import perfscope; print(perfscope.open({RUN!r}).frame('optimizer')['idle_share'][0])"
    assert float(tree.python(program)) == share


FINDING = '''\
def find_long_steps(training: TracedRun) -> Fault | None:
    """Steps that take time."""
    steps = training.results.steps
    if steps is None or steps.step_time_s is None:
        return None
    cost_us = steps.step_time_s * US_PER_S
    evidence = fact("Steps take time.", "/steps", "step_time_s")
    return Fault(cost_us, (0.0, cost_us), (), (evidence,), "Try nothing.")
'''


def test_a_function_and_a_line_add_a_finding(tree: Tree) -> None:
    tree.add_line("analyzers/findings/host.py", FINDING, before="def find_slow_launches(")
    rule = 'Finder("toy", "Toy", (StepPart.OUTSIDE,), find_long_steps),'
    tree.add_line("analyzers/findings/host.py", rule, before='Finder("slow_data_loading"')
    assert "**Toy** (`toy`)" in tree.perfscope("analyze", "--only", "findings", RUN).stdout
    results = json.loads(tree.perfscope("analyze", "--format", "json", RUN).stdout)["results"]
    assert results["findings"][0]["id"] == "toy"
    assert results["findings"][0]["cost_us"] == results["steps"]["step_time_s"] * 1e6


HOOKS = '''\
"""Hooks around toy's Trainer, whose ``train_step`` is one step of all its micro-batches."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from perfscope.hooks.frameworks.wrapping import wrap_functions

if TYPE_CHECKING:
    from types import ModuleType

    from perfscope.hooks.capture import Capture
    from perfscope.hooks.frameworks.wrapping import Patches, RunningHook


def patch_trainer(module: ModuleType, capture: Capture) -> None:
    """Count the steps of Trainer."""

    def train_step(trainer: Any, *_args: Any, **_kwargs: Any) -> RunningHook:
        capture.arm("toy")
        capture.on_step_begin()
        loss = yield
        capture.on_step_end("toy", trainer, iteration=trainer.iteration, skipped=loss is None)

    wrap_functions(module.Trainer, capture, {"train_step": train_step})


PATCHES: Patches = {"toy.trainer": {"counting toy's steps": patch_trainer}}
'''

TOY = """\
import torch

class Trainer:
    def __init__(self):
        self.model = torch.nn.Linear(4, 4)
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=0.1)
        self.iteration = 100

    def train_step(self, batches):
        self.iteration += 1
        for batch in batches:
            self.optimizer.zero_grad()
            self.model(batch).sum().backward()
            self.optimizer.step()
        return 1.0
"""

TRAINING = """\
import torch
from toy.trainer import Trainer

trainer = Trainer()
for _ in range(8):
    trainer.train_step(torch.randn(3, 2, 4))
"""


@pytest.mark.slow
def test_a_new_file_and_one_line_count_the_steps_of_a_framework(tree: Tree) -> None:
    tree.add_file("toy/__init__.py", "")
    tree.add_file("toy/trainer.py", TOY)
    tree.add_file("train.py", TRAINING)
    tree.add_file("hooks/frameworks/toy.py", HOOKS)
    line = 'FrameworkHooks("toy", ("toy.trainer",), (StepBoundary("toy", 60, "toy `Trainer.train_step`"),)),'
    tree.add_line("perfscope/frameworks.py", line, before="# A line for each further framework")
    tree.perfscope("profile", "-o", "RUN", "--nvml-hz", "0", "--", sys.executable, "train.py")
    # Three optimizer steps are a part of each step of toy's.
    steps = [(line["source"], line["step"], line["iteration"]) for line in step_lines(tree.root / "RUN")]
    assert steps == [("toy", step, 100 + step) for step in range(1, 9)]
    assert "- Step boundary: toy `Trainer.train_step`." in tree.perfscope("analyze", "--only", "steps", "RUN").stdout


LOG_FORMAT = '''\
"""Toy: a line a step, ``toy: step 3 took 1.50 s, loss 2.5``, after ``toy: batch 16``."""

from __future__ import annotations

from dataclasses import dataclass

from perfscope.constants import NS_PER_S
from perfscope.sources.joblog.log_format import FormatState, LineMatch, LineRule, LogFormat, counts
from perfscope.sources.joblog.text import parse_number

SOURCE = "toy's step time"


@dataclass(slots=True)
class _State(FormatState):
    """How many steps were read."""

    steps: int = 0


def _on_step(state: _State, line: LineMatch) -> None:
    record = state.log.timed(line["seconds"], NS_PER_S, int(line["step"]), loss=parse_number(line["loss"]))
    if record is not None:
        state.log.add(SOURCE, record, line.label)
        state.steps += 1


def _close(state: _State) -> None:
    state.log.set_fact("train_iterations", state.steps, "records")


FORMAT = LogFormat(
    framework="toy",
    state=_State,
    rules=(
        LineRule(b"toy: batch", rb"toy: batch (\\d+)", counts("gbs")),
        LineRule(
            b"toy: step",
            rb"toy: step (?P<step>\\d+) took (?P<seconds>\\S+) s, loss (?P<loss>\\S+)",
            _on_step,
        ),
    ),
    sources=(SOURCE,),
    close=_close,
)
'''
LOG = "toy: batch 16\n" + "".join(f"[rank0]:toy: step {step} took {step / 2} s, loss 2.5\n" for step in (1, 2, 3))


def test_a_new_file_and_one_line_add_a_log_format(tree: Tree) -> None:
    tree.add_file("perfscope/sources/joblog/formats/toy.py", LOG_FORMAT)
    tree.add_line("perfscope/sources/joblog/registry.py", '"toy",', before='"nemo",')
    tree.add_file("toy.log", LOG)
    (log,) = json.loads(tree.perfscope("logs", "toy.log", "--format", "json").stdout)["logs"]
    assert (log["framework"], log["time_source"], log["status"]) == ("toy", "toy's step time", "ok")
    assert (log["median_s"], log["gbs"], log["samples_per_s"]) == (1.25, 16, 12.8)
    assert (log["complete"], log["loss"]) == (True, {"first": 2.5, "last": 2.5})


RENDERER = '''\
"""A report as the titles of its sections, one a line."""

from __future__ import annotations

from perfscope.report import Report


def render(report: Report) -> str:
    """The titles of a report and its sections."""
    return "\\n".join([report.title, *(f"* {section.title}" for section in report.sections)])
'''


def test_a_new_file_and_one_line_add_a_renderer(tree: Tree) -> None:
    tree.add_file("perfscope/renderers/toy.py", RENDERER)
    tree.add_line("perfscope/renderers/__init__.py", 'TOY = "toy"', before='CSV = "csv"')
    printed = tree.perfscope("analyze", "--only", "breakdown", "--format", "toy", TRACE).stdout
    assert printed.splitlines() == ["Where the time went", "* Device time", "* Device time by step"]
