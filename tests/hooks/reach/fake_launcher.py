"""Stands for pdsh, ssh, mpirun and srun: records how it was called, and runs the command here, once for each rank.

What it starts gets no variable of its own environment but those that the real launcher would pass on: pdsh and ssh
none, Open MPI what ``-x`` names, MPICH all, srun what ``--export`` says.
"""

from __future__ import annotations

import json
import os
import shlex
import subprocess
import sys
from pathlib import Path

_ALWAYS = ("PATH", "HOME", "OMP_NUM_THREADS", "TORCH_EXTENSIONS_DIR", "LD_LIBRARY_PATH")
_OPTIONS_WITH_VALUE = {
    "mpirun": {
        "-n": 1,
        "-np": 1,
        "-ppn": 1,
        "-hostfile": 1,
        "--host": 1,
        "--mca": 2,
    },
    "srun": {"-n": 1, "--nodes": 1, "--gres": 1, "--ntasks-per-node": 1, "-w": 1, "-x": 1},
}
_RANK = {
    "openmpi": ("OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE"),
    "mpich": ("PMI_RANK", "PMI_SIZE"),
    "srun": ("SLURM_PROCID", "SLURM_NTASKS"),
}


def main(name: str, words: list[str]) -> int:
    """Do as the launcher of that name."""
    with Path(os.environ["FAKE_LAUNCHER_LOG"]).open("a", encoding="utf-8") as log:
        log.write(json.dumps([name, *words]) + "\n")
    if name in ("ompi_info", "sinfo") or "--version" in words:
        is_open = os.environ.get("FAKE_MPI", "openmpi") == "openmpi"
        sys.stdout.write("mpirun (Open MPI) 5.0.3\n" if is_open else "HYDRA 4.2\n")
        return 0
    if name in ("pdsh", "ssh"):
        return _remote_shells(name, words)
    return _ranks(name, words)


def _remote_shells(name: str, words: list[str]) -> int:
    if name == "ssh":
        return subprocess.run(["hostname"], check=False).returncode
    hosts = words[words.index("-w") + 1].split(",")
    command = " ".join(words[words.index("-w") + 2 :])
    if command.startswith("pkill"):
        return 0
    started = [
        subprocess.Popen(["/bin/bash", "-c", command.replace("%n", str(number))], env=_environment({}))
        for number in range(len(hosts))
    ]
    return max(abs(process.wait()) for process in started)


def _ranks(name: str, words: list[str]) -> int:
    flavour = "srun" if name == "srun" else os.environ.get("FAKE_MPI", "openmpi")
    count, passed, command = 1, {} if flavour == "openmpi" else dict(os.environ), list(words)
    while command and command[0].startswith("-"):
        option = command.pop(0)
        if flavour == "openmpi" and option == "-x":
            key, _, value = command.pop(0).partition("=")
            passed[key] = value or os.environ.get(key, "")
        elif option.startswith("--export="):
            passed = _exported(option.removeprefix("--export="))
        else:
            values = [command.pop(0) for _ in range(_OPTIONS_WITH_VALUE[name].get(option, 0))]
            count = int(values[0]) if option in ("-n", "-np") else count
    rank, size = _RANK[flavour]
    lost = os.environ.get("FAKE_LOST_RANK")
    started = [
        subprocess.Popen(
            command,
            env=_environment({**({} if lost == str(number) else passed), rank: str(number), size: str(count)}),
        )
        for number in range(count)
    ]
    return max(abs(process.wait()) for process in started)


def _exported(text: str) -> dict[str, str]:
    """srun's list, which commas divide: ALL, NAME, or NAME=VALUE."""
    found: dict[str, str] = {}
    for word in text.split(","):
        if word == "ALL":
            found.update(os.environ)
        elif "=" in word:
            key, _, value = word.partition("=")
            found[key] = value
        elif word in os.environ:
            found[word] = os.environ[word]
    return found


def _environment(passed: dict[str, str]) -> dict[str, str]:
    kept = {name: os.environ[name] for name in _ALWAYS if name in os.environ}
    port = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": os.environ.get("FAKE_PORT", "29500")}
    return {**kept, **passed, **port}


def install(folder: Path) -> None:
    """Put a program of each name into a folder."""
    folder.mkdir()
    for name in ("pdsh", "ssh", "mpirun", "ompi_info", "srun", "sinfo"):
        program = folder / name
        program.write_text(f'#!/bin/sh\nexec {shlex.quote(sys.executable)} {shlex.quote(__file__)} {name} "$@"\n')
        program.chmod(0o755)


def calls(log: Path, name: str) -> list[list[str]]:
    """How a launcher was called."""
    return [call[1:] for line in log.read_text().splitlines() if (call := json.loads(line))[0] == name]


if __name__ == "__main__":
    sys.exit(main(sys.argv[1], sys.argv[2:]))
