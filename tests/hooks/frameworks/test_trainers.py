"""Ways to train: trainers on top of torch, DeepSpeed's engines, and loops without an engine."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

from tests.conftest import SCRIPTS, analysis, profile, step_lines
from tests.hooks.frameworks.running import TORCHRUN, field, layout, notes, torchrun
from tests.hooks.harm.runs import launcher

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


def test_a_step_of_a_distributed_optimizer_is_the_trainer_s(tmp_path: Path) -> None:
    run = torchrun(2, "rpc_parameter_server.py", "Adagrad", cwd=tmp_path)
    assert field(run, 1, "source") == {"rpc_optimizer"}
    assert [line["step"] for line in step_lines(run, "00001")] == list(range(1, 7))
    assert (run / "ranks" / "00000" / "steps.jsonl").read_text() == "", "the server makes no steps of its own"
    assert json.loads((run / "ranks" / "00000" / "rank.json").read_text())["world_size"] == 2


@pytest.mark.parametrize(("how", "samples"), [("replicas", 8), ("stages", None)])
def test_several_devices_in_one_process_make_one_step(how: str, samples: int | None, tmp_path: Path) -> None:
    ended = profile(sys.executable, SCRIPTS / "loops.py", how, cwd=tmp_path, options=["--exec", "--steps", "2-3"])
    assert ended.code == 0, ended.stderr
    lines = step_lines(tmp_path / "RUN")
    assert [line["step"] for line in lines] == list(range(1, 7))
    # Clearing the gradients shows where the first step begins, so that a window at step 2 has its warm-up.
    assert [line.get("window") for line in lines[:4]] == ["warmup", "profiled", "profiled", "export"]
    assert "without a warm-up" not in " ".join(notes(tmp_path / "RUN"))
    if samples:
        assert {line["samples"] for line in lines} == {samples}


@pytest.mark.parametrize("what", ["model", "step", "function"])
def test_compiled_steps_are_counted(what: str, tmp_path: Path) -> None:
    ended = profile(sys.executable, SCRIPTS / "loops.py", f"compiled_{what}", cwd=tmp_path, options=["--exec"])
    assert ended.code == 0, ended.stderr
    assert [line["step"] for line in step_lines(tmp_path / "RUN")] == list(range(1, 9))


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
