"""``perfscope compare`` on trainings that were really run: the budget of the change adds up."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from tests.commands.report_cli import run
from tests.conftest import perfscope

pytestmark = pytest.mark.slow

TRAIN = """
import sys
import torch
model = torch.nn.Sequential(*[torch.nn.Linear(512, 512) for _ in range(4)])
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
batch = torch.ones(64, 512)
for _ in range(40):
    optimizer.zero_grad()
    loss = model(batch)
    for _ in range(int(sys.argv[1])):
        loss = loss + torch.exp(batch)
    loss.square().mean().backward()
    optimizer.step()
"""


def test_terms_and_what_is_unexplained_add_up_to_the_change(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """B also adds up 60 exponentials a step."""
    (tmp_path / "train.py").write_text(TRAIN)
    for name, added in (("a", 0), ("b", 60)):
        options = ("-o", name, "--steps", "11-20")
        ended = perfscope("profile", *options, "--", sys.executable, "train.py", str(added), cwd=tmp_path)
        assert ended.code == 0, ended.stderr
    answer = run(capsys, "compare", tmp_path / "a", tmp_path / "b", "--format", "json")
    document = answer.data
    assert document["explains"] == "the undisturbed steps"
    change_us = 1e6 * (document["step_time"]["b_s"] - document["step_time"]["a_s"])
    assert document["change_us"] == pytest.approx(change_us, abs=0.002)
    total_ns = sum(round(term["change_us"] * 1000) for term in document["terms"])
    assert total_ns + round(document["unexplained_us"] * 1000) == round(document["change_us"] * 1000)
    exponential = next(term for term in document["terms"] if term["kernel"] == "aten::exp")
    assert exponential["change_us"] > 0
    assert exponential["a_us"] == 0
