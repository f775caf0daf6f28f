"""Runs the same training with and without perfscope in every way that it can end, both at a time."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

from tests.conftest import SCRIPTS, Ended, environment, profile, run

LAUNCHERS = ("python", "torchrun", "deepspeed")
ENDINGS = ("none", "raise", "exit", "_exit", "SIGTERM", "SIGINT", "SIGKILL", "SIGSEGV")
DISKS = ("full", "readonly")
WINDOW = "3-4"
INSIDE, AFTER = 3, 7  # steps at which a run ends: in the window, and three after it

_ABORT = "terminate called without an active exception"
_DISK = "300m"  # the capture writes no trace where less than 256 MiB are free


@dataclass(frozen=True)
class Case:
    """One run: what starts it, what happens to it after which step, and whether ``perfscope profile`` runs it."""

    launcher: str
    how: str
    when: int
    captured: bool


CASES = tuple(
    Case(launcher, how, when, captured)
    for launcher in LAUNCHERS
    for how in (*ENDINGS, *DISKS)
    for when in ((INSIDE, AFTER) if launcher == "python" and how not in ("none", *DISKS) else (AFTER,))
    for captured in (False, True)
)


class Runs:
    """Cases, each run once."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._pool = ThreadPoolExecutor(2)

    def pair(self, case: Case) -> tuple[Ended, Ended]:
        """How a training ends without perfscope, and with it."""
        alone = Case(case.launcher, case.how, case.when, captured=False)
        first, second = self._pool.map(self._run, (alone, case))
        return first, second

    def folder(self, case: Case) -> Path:
        """Where a case ran."""
        return self._folder / f"{case.launcher}-{case.how}-{case.when}-{'with' if case.captured else 'without'}"

    def close(self) -> None:
        """Leave nothing mounted or running."""
        self._pool.shutdown(cancel_futures=True)
        for case in CASES:
            self._unmount(case)

    def _run(self, case: Case) -> Ended:
        """Run a case, and once more where gloo's thread aborts it at its end: one in some hundred, also when bare."""
        ended = self._run_once(case)
        if _ABORT in ended.stderr:
            self._unmount(case)
            shutil.rmtree(self.folder(case))
            ended = self._run_once(case)
        return ended

    def _unmount(self, case: Case) -> None:
        if (self.folder(case) / "disk").is_mount():
            subprocess.run(["umount", self.folder(case) / "disk"], check=True)

    def _run_once(self, case: Case) -> Ended:
        folder = self.folder(case)
        (folder / "disk").mkdir(parents=True)
        words: list[str | Path] = [SCRIPTS / "harmed.py", case.launcher, case.how, "--when", str(case.when)]
        if case.how in DISKS:
            mount = ["mount", "-t", "tmpfs", "-o", f"size={_DISK}", "tmpfs", str(folder / "disk")]
            subprocess.run(mount, check=True)  # needs root, as the sandbox of the tests gives it
            words += ["--disk", folder / "disk"]
        command = [*launcher(case.launcher, ranks=2 if case.launcher == "torchrun" else 1), *words]
        if not case.captured:
            return run(command, folder)
        # The supervisor is the same for every launcher: these cases show it, the others become the command.
        is_supervised = case.launcher == "python" and case.when == AFTER
        options = ["--steps", WINDOW, *([] if is_supervised else ["--exec"])]
        return profile(*command, cwd=folder, run_dir="disk/RUN", options=options)


def launcher(name: str, ranks: int) -> list[str | Path]:
    """The words before a script."""
    commands: dict[str, list[str | Path]] = {
        "python": [sys.executable],
        "torchrun": ["torchrun", "--standalone", "--nproc_per_node", str(ranks)],
        "deepspeed": ["deepspeed", "--num_gpus", str(ranks), "--master_port", environment()["MASTER_PORT"]],
    }
    return commands[name]


def own_output(ended: Ended) -> list[str]:
    """What the script printed: the lines of launchers tell times and process ids."""
    return [
        line
        for line in ended.stdout.splitlines()
        if not re.match(r"\[\d{4}-|\[W|\[rank|Using|Emitting|ninja|Load", line)
    ]
