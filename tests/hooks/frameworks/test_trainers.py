"""Trainers on top of torch: Hugging Face's Trainer, Accelerate and Lightning, each by the way it is launched."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from tests.conftest import SCRIPTS, profile, step_lines
from tests.hooks.frameworks.running import TORCHRUN, field, layout

pytestmark = pytest.mark.slow

LIGHTNING = SCRIPTS / "lightning_trainer.py"
COMMANDS: dict[str, list[str | Path]] = {
    "Trainer by python": [sys.executable, SCRIPTS / "hf_trainer.py", "out"],
    "Accelerate by accelerate launch": [
        *("accelerate", "launch", "--cpu", "--num_processes", "1", "--num_machines", "1", "--mixed_precision", "no"),
        *("--dynamo_backend", "no", SCRIPTS / "hf_accelerate.py"),
    ],
    "Accelerate by torchrun": [*TORCHRUN, "2", SCRIPTS / "hf_accelerate.py"],
    "Lightning, which starts its second rank itself": [sys.executable, LIGHTNING, "out", "2", "none"],
}


@pytest.mark.parametrize("name", COMMANDS)
def test_a_step_is_an_update_of_two_accumulated_micro_batches(name: str, tmp_path: Path) -> None:
    ended = profile(*COMMANDS[name], cwd=tmp_path, options=["--exec"], HF_HUB_OFFLINE="1")
    assert ended.code == 0, ended.stderr
    ranks = len(list((tmp_path / "RUN" / "ranks").iterdir()))
    assert ranks == (2 if "torchrun" in name or "second" in name else 1)
    for rank in range(ranks):
        lines = step_lines(tmp_path / "RUN", f"{rank:05d}")
        # What is evaluated between them is no part of a step.
        assert [line["step"] for line in lines] == list(range(1, 11))
        # Accelerate's loader reads one batch ahead: where nothing else counts, the first step has it and the last not.
        assert {(line["source"], line["samples"], line["tokens"]) for line in lines[1:-1]} == {("optimizer", 8, 128)}
        assert all(line["data_wait_ns"] > 0 for line in lines)
    if ranks > 1:
        assert [layout(tmp_path / "RUN", rank)[0]["dp"] for rank in (0, 1)] == [0, 1]
        assert field(tmp_path / "RUN", 0, "micro_batches") == {2}
