"""CONTRIBUTING's guide "Add a framework's hook": one new file and one line make ``perfscope profile`` count steps."""

from __future__ import annotations

import sys

import pytest

from tests.conftest import Ended, step_lines
from tests.guides.tree import Tree

pytestmark = pytest.mark.slow

LINE = 'FrameworkHooks("toy", ("toy.trainer",), (StepBoundary("toy", 60, "toy `Trainer.train_step`"),)),'

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


@pytest.fixture
def toy_tree(tree: Tree) -> Tree:
    """A tree beside which a framework is installed and a script trains with it."""
    (tree.root / "toy").mkdir()
    tree.add_file("toy/__init__.py", "")
    tree.add_file("toy/trainer.py", TOY)
    tree.add_file("train.py", TRAINING)
    return tree


def profile(tree: Tree) -> Ended:
    """Train below the tree's own ``perfscope profile``."""
    return tree.perfscope("profile", "-o", "RUN", "--nvml-hz", "0", "--", sys.executable, "train.py")


def test_a_new_file_and_one_line_count_the_steps_of_a_framework(toy_tree: Tree) -> None:
    toy_tree.add_file("hooks/frameworks/toy.py", HOOKS)
    toy_tree.add_line("perfscope/frameworks.py", LINE, before="# A line for each further framework")

    ended = profile(toy_tree)
    assert ended.code == 0, ended.stderr
    # Three optimizer steps are a part of each step of toy's.
    lines = step_lines(toy_tree.root / "RUN")
    assert [(line["source"], line["step"], line["iteration"]) for line in lines] == [
        ("toy", step, 100 + step) for step in range(1, 9)
    ]

    printed = toy_tree.perfscope("analyze", "--only", "steps", "RUN")
    assert "- Step boundary: toy `Trainer.train_step`." in printed.stdout, printed.stderr
