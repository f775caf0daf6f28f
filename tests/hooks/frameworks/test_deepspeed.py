"""Steps of real DeepSpeed engines on two CPU ranks: the engine's, never those of the optimizer inside."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.conftest import SCRIPTS, analysis, profile, step_lines
from tests.hooks.harm.runs import launcher

pytestmark = pytest.mark.slow


@pytest.mark.parametrize("stage", [0, 1, 3])
def test_zero_steps_are_those_of_the_engine(stage: int, tmp_path: Path) -> None:
    script: list[str | Path] = [SCRIPTS / "deepspeed_engine.py", "--stage", str(stage), "--save", "saved"]
    ended = profile(*launcher("deepspeed", ranks=2), *script, cwd=tmp_path, options=["--exec"])
    assert ended.code == 0, ended.stderr
    for rank in ("00000", "00001"):
        lines = step_lines(tmp_path / "RUN", rank)
        assert [line["step"] for line in lines] == list(range(1, 9))
        assert {line["source"] for line in lines} == {"deepspeed"}
        # 2 micro-batches of 3 samples on each of 2 ranks.
        assert {(line["micro_batches"], line["samples"], line["global_samples"]) for line in lines} == {(2, 6, 12)}
        parallel = json.loads((tmp_path / "RUN" / "ranks" / rank / "parallel.json").read_text())
        assert parallel["coordinates"] == {"dp": int(rank), "pp": 0, "tp": 0}
        assert parallel["sizes"] == {"dp": 2, "pp": 1, "tp": 1}
    results = analysis(tmp_path / "RUN")["results"]
    assert results["steps"]["count"] == 8
    assert results["steps"]["samples_per_step"] == 12
    assert {rank["rank"] for rank in results["host"]["ranks"]} == {0, 1}
    # One save of both ranks, with all the files that torch.save wrote inside it, and none of them once more.
    (save,) = results["saves"]["saves"]
    assert (save["source"], save["step"], save["ranks"], save["asynchronous"]) == ("deepspeed", 7, 2, False)
    files = [file for file in (tmp_path / "saved").rglob("*.pt") if file.is_file()]
    assert save["bytes"] == sum(file.stat().st_size for file in files)
    assert step_lines(tmp_path / "RUN")[7]["save_ns"] > 0


def test_pipeline_steps_are_train_batches(tmp_path: Path) -> None:
    ended = profile(
        *launcher("deepspeed", ranks=2), SCRIPTS / "deepspeed_pipeline.py", cwd=tmp_path, options=["--exec"]
    )
    assert ended.code == 0, ended.stderr
    for stage, rank in enumerate(("00000", "00001")):
        lines = step_lines(tmp_path / "RUN", rank)
        assert [line["step"] for line in lines] == list(range(1, 9))
        assert {(line["source"], line["micro_batches"], line["global_samples"]) for line in lines} == {
            ("deepspeed_pipeline", 4, 8)
        }
        parallel = json.loads((tmp_path / "RUN" / "ranks" / rank / "parallel.json").read_text())
        assert parallel["coordinates"] == {"dp": 0, "pp": stage, "tp": 0}
        assert parallel["sizes"] == {"dp": 1, "pp": 2, "tp": 1}
    found = analysis(tmp_path / "RUN")["results"]["pipeline_steps"]
    assert (found["schedule"], found["microbatches"], found["p"]) == ("1f1b", 4, 2)
    assert found["theory_fraction_of_total"] == pytest.approx(0.2)
