"""Launchers: our variables reach the ranks of each, and a rank that they did not reach is named at the end."""

from __future__ import annotations

import os
import re
import sys
from pathlib import Path

import pytest

from perfscope.hooks.facts import launched_rank
from perfscope.hooks.reach.launch import find_obstacles
from tests.conftest import SCRIPTS, Ended, analysis, environment, profile, step_lines
from tests.hooks.reach.fake_launcher import calls, install

pytestmark = pytest.mark.slow


DDP: list[str | Path] = [sys.executable, SCRIPTS / "ddp.py"]
PYTHON_VARIABLES = ("PYTHONPATH", "PYTHON_PERFSCOPE")


def launch(*command: str | Path, cwd: Path, **variables: str) -> Ended:
    """Run a command under perfscope where every launcher is the fake one."""
    install(cwd / "bin")
    ports = environment()
    return profile(
        *command,
        cwd=cwd,
        PATH=f"{cwd / 'bin'}{os.pathsep}{ports['PATH']}",
        FAKE_LAUNCHER_LOG=str(cwd / "calls"),
        FAKE_PORT=ports["MASTER_PORT"],
        **variables,
    )


def assert_two_ranks(run: Path, steps: int = 10) -> None:
    assert [len(step_lines(run, rank)) for rank in ("00000", "00001")] == [steps, steps]


@pytest.mark.parametrize("flavour", ["openmpi", "mpich"])
def test_mpirun(flavour: str, tmp_path: Path) -> None:
    ended = launch("mpirun", "-np", "2", *DDP, cwd=tmp_path, FAKE_MPI=flavour)
    assert ended.code == 0, ended.stderr
    assert_two_ranks(tmp_path / "RUN")
    *_, call = calls(tmp_path / "calls", "mpirun")
    assert ("-x" in call) == (flavour == "openmpi"), "MPICH's launcher knows no -x"


def test_a_rank_that_never_reported_is_named_at_the_end(tmp_path: Path) -> None:
    ended = launch("srun", "-n", "2", *DDP, cwd=tmp_path, FAKE_LOST_RANK="1")
    assert ended.code == 0
    assert "warning: 1 of 2 ranks never reported: 1" in ended.stderr
    assert "1 of 2 ranks never reported: 1" in analysis(tmp_path / "RUN")["warnings"][0]


def launch_deepspeed(launcher: str, folder: Path, *script: str | Path) -> Ended:
    (folder / "hosts").write_text("first slots=1\nsecond slots=1\n")
    options = ["--hostfile", "hosts", "--launcher", launcher, "--master_addr", "127.0.0.1"]
    return launch("deepspeed", *options, "--master_port", environment()["MASTER_PORT"], *script, cwd=folder)


def test_deepspeed_by_pdsh(tmp_path: Path) -> None:
    ended = launch_deepspeed("pdsh", tmp_path, SCRIPTS / "deepspeed_engine.py", "--stage", "1")
    assert ended.code == 0, ended.stderr
    assert_two_ranks(tmp_path / "RUN", 8)
    (call,) = [call for call in calls(tmp_path / "calls", "pdsh") if "deepspeed.launcher.launch" in " ".join(call)]
    assert call[call.index("-w") + 1] == "first,second"
    exported = dict(re.findall(r"export (\w+)=([^;]*);", " ".join(call)))
    assert set(PYTHON_VARIABLES) <= set(exported)
    # DeepSpeed puts the working directory first, and our folder must come next.
    assert exported["PYTHONPATH"].split(os.pathsep)[:2] == [str(tmp_path), str(tmp_path / "RUN" / ".boot")]


@pytest.mark.parametrize(("launcher", "program"), [("openmpi", "mpirun"), ("slurm", "srun")])
def test_deepspeed_by_other_launchers(launcher: str, program: str, tmp_path: Path) -> None:
    ended = launch_deepspeed(launcher, tmp_path, SCRIPTS / "ddp.py")
    assert ended.code == 0, ended.stderr
    assert_two_ranks(tmp_path / "RUN")
    (call,) = [call for call in calls(tmp_path / "calls", program) if "ddp.py" in " ".join(call)]
    assert all(any(f"{name}=" in word for word in call) for name in PYTHON_VARIABLES)
    assert not any('PYTHON_PERFSCOPE="' in word for word in call), "quotes would stay in the value"


@pytest.mark.parametrize(
    ("variables", "found"),
    [
        ({"RANK": "3", "WORLD_SIZE": "8", "SLURM_PROCID": "0", "SLURM_NTASKS": "2"}, (3, 8)),
        ({"OMPI_COMM_WORLD_RANK": "1", "OMPI_COMM_WORLD_SIZE": "4", "SLURM_PROCID": "0", "SLURM_NTASKS": "1"}, (1, 4)),
        ({"MV2_COMM_WORLD_RANK": "2", "MV2_COMM_WORLD_SIZE": "4"}, (2, 4)),
        ({"PMI_RANK": "5", "PMI_SIZE": "6"}, (5, 6)),
        ({"JSM_NAMESPACE_RANK": "1", "JSM_NAMESPACE_SIZE": "2"}, (1, 2)),
        ({"SLURM_PROCID": "7", "SLURM_NTASKS": "16"}, (7, 16)),
        ({}, (0, 1)),
    ],
)
def test_the_rank_is_in_each_launcher_s_variables(
    variables: dict[str, str], found: tuple[int, int], monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in (*launched_rank._RANK_VARIABLES, *launched_rank._WORLD_VARIABLES):
        monkeypatch.delenv(name, raising=False)
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    monkeypatch.delitem(sys.modules, "torch.distributed", raising=False)
    assert launched_rank.rank_and_world_size() == found


def test_what_keeps_srun_from_passing_variables_on_is_said_before_the_start() -> None:
    assert "add ALL" in find_obstacles(["srun", "--export", "NONE", "python", "x.py"])[0]
    assert "SLURM_EXPORT_ENV=NONE" in find_obstacles(["srun", "python", "x.py"], {"SLURM_EXPORT_ENV": "NONE"})[0]
    assert find_obstacles(["srun", "--export=ALL,A=1", "python", "x.py"], {"SLURM_EXPORT_ENV": "ALL"}) == []
    assert find_obstacles(["python", "x.py", "--export=onnx"]) == []


CODE = """
import sys
import torch.distributed.rpc, torch.optim, torch.utils.data, torch.utils.checkpoint
ours = [name for name in sys.modules if name.startswith("perfscope")]
print("loaded", *ours)
"""
#: The hooks' own files for torch, what they rest on, and the packages around these.
MOST_MODULES = 24


def test_a_process_that_never_trains_loads_hooks_and_no_records(tmp_path: Path) -> None:
    ended = profile(sys.executable, "-c", CODE, cwd=tmp_path)
    assert ended.code == 0, ended.stderr
    (line,) = (line for line in ended.stdout.splitlines() if line.startswith("loaded "))
    loaded = line.split()[1:]
    assert "perfscope.hooks.frameworks.torch" in loaded, "torch is hooked"
    heavy = [name for name in loaded if name.startswith("perfscope.wire") or name.endswith((".capture", ".secrets"))]
    assert heavy == []
    assert len(loaded) <= MOST_MODULES, loaded
