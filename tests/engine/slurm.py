"""A real Slurm of one node: its controller and its daemon, on free ports, without the secrets of a real cluster."""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

_LONGEST_START_S = 60.0
_SETTINGS = {
    "ClusterName": "tests", "AuthType": "auth/none", "CredType": "cred/none", "SlurmUser": "root", "SlurmdUser": "root",
    "ProctrackType": "proctrack/linuxproc", "TaskPlugin": "task/none", "SwitchType": "switch/none",
    "MpiDefault": "none", "ReturnToService": "2", "SelectType": "select/cons_tres", "SelectTypeParameters": "CR_Core",
    "KillWait": "2",
    "SchedulerParameters": "sched_interval=1,batch_sched_delay=0", "SlurmdParameters": "config_overrides",
    "MailProg": "/bin/true",
}  # fmt: skip


@contextmanager
def slurm_node(folder: Path) -> Iterator[dict[str, str]]:
    """The variables with which Slurm's commands find the node; it ends with the context, and so do its jobs."""
    folder.mkdir()
    host = socket.gethostname().partition(".")[0]
    controller, daemon = _free_port(), _free_port()
    paths = {name: folder / name for name in ("state", "spool")}
    for path in paths.values():
        path.mkdir()
    settings = {
        **_SETTINGS, "SlurmctldHost": f"{host}(127.0.0.1)", "SlurmctldPort": controller, "SlurmdPort": daemon,
        "SlurmctldPidFile": folder / "controller.pid", "SlurmdPidFile": folder / "daemon.pid",
        "SlurmctldLogFile": folder / "controller.log", "SlurmdLogFile": folder / "daemon.log",
        "StateSaveLocation": paths["state"], "SlurmdSpoolDir": paths["spool"],
    }  # fmt: skip
    lines = [f"{name}={value}" for name, value in settings.items()]
    lines.append(f"NodeName={host} NodeAddr=127.0.0.1 CPUs=4 RealMemory=16000 State=UNKNOWN")
    lines.append("PartitionName=short Nodes=ALL Default=YES MaxTime=INFINITE State=UP")
    (folder / "slurm.conf").write_text("\n".join(lines) + "\n")
    variables = {"SLURM_CONF": str(folder / "slurm.conf")}
    environment = {**os.environ, **variables}
    with (folder / "log").open("wb") as log:
        processes = [
            subprocess.Popen([_program(name), "-D"], stdout=log, stderr=log, env=environment)
            for name in ("slurmctld", "slurmd")
        ]
    try:
        _wait_until_idle(environment, folder)
        yield variables
    finally:
        subprocess.run(["scancel", "--user", "root"], env=environment, check=False)
        for process in reversed(processes):
            process.terminate()
            process.wait()


def jobs(variables: dict[str, str]) -> list[str]:
    """The states of all jobs that Slurm remembers, in their order."""
    words = ["squeue", "--noheader", "--states=all", "--sort=i", "--format=%T"]
    answer = subprocess.run(words, env={**os.environ, **variables}, capture_output=True, text=True, check=True)
    return answer.stdout.split()


def _program(name: str) -> str:
    path = shutil.which(name, path=f"{os.environ['PATH']}:/usr/sbin:/sbin")
    assert path is not None, f"{name} is missing: `make hosts` installs it"
    return path


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def _wait_until_idle(environment: dict[str, str], folder: Path) -> None:
    deadline = time.monotonic() + _LONGEST_START_S
    words = ["sinfo", "--noheader", "--format=%T"]
    while "idle" not in subprocess.run(words, env=environment, capture_output=True, text=True, check=False).stdout:
        logs = "\n".join(path.read_text(errors="replace") for path in folder.glob("*log"))
        assert time.monotonic() < deadline, logs
        time.sleep(0.2)
