"""Prepares the environment in which an unmodified command captures itself: a boot folder first on PYTHONPATH.

Every launcher passes PYTHONPATH to its ranks, so Python itself runs our ``sitecustomize`` in each of them. torchrun and
srun pass the entire environment, DeepSpeed's runners the variables whose names begin with PYTHON.
"""

from __future__ import annotations

import compileall
import os
import re
import shutil
import subprocess
from collections.abc import Mapping, Sequence
from contextlib import suppress
from importlib.machinery import SourcelessFileLoader
from importlib.util import cache_from_source
from itertools import pairwise
from pathlib import Path

import perfscope
from perfscope import hooks, wire
from perfscope.hooks.config import CONFIG_FILE, ENVIRONMENT_VARIABLE, LOCATIONS_FILE, Config
from perfscope.hooks.record_files import replace_file

#: DeepSpeed's runners quote every other character, and two of them leave the quotes inside the value.
_SAFE_PATH = re.compile(r"[A-Za-z0-9_./-]+")

_MPI_LAUNCHERS = ("mpirun", "mpiexec", "orterun")
_TIMEOUT_S = 10

_PACKAGED_BOOT = Path(hooks.__file__).resolve().parent / "boot"


def prepare(config: Config) -> Path:
    """Create the run's folder and its boot folder. Raises OSError: the folder exists, or cannot be created."""
    run_dir = Path(config.run_dir)
    run_dir.mkdir(parents=True)
    (run_dir / wire.RANKS_FOLDER).mkdir()
    (run_dir / wire.TRACES_FOLDER).mkdir()
    boot = run_dir / wire.BOOT_FOLDER
    boot.mkdir()
    source, target = _PACKAGED_BOOT / "sitecustomize.py", boot / "sitecustomize.py"
    try:
        target.symlink_to(source)  # tools that measure the files of the working folder look where a link leads
    except OSError:
        shutil.copyfile(source, target)
    replace_file(str(boot / CONFIG_FILE), config.to_json().encode())
    _compile(boot)
    locations = "\n".join(str(Path(module.__file__ or "").resolve()) for module in (perfscope, hooks))
    replace_file(str(boot / LOCATIONS_FILE), f"{locations}\n".encode())
    return boot


def _compile(boot: Path) -> None:
    """Compile what runs in a captured process: with PYTHONDONTWRITEBYTECODE each of them would compile it again."""
    package = Path(perfscope.__file__).parent
    modules = [package / f"{module}.py" for module in ("__init__", "constants", "frameworks")]
    for folder in (boot, _PACKAGED_BOOT.parent, package / "wire"):
        modules += folder.rglob("*.py")
    for module in modules:
        compileall.compile_file(module, quiet=2)
        _remove_cut_bytecode(Path(cache_from_source(str(module))))


def _remove_cut_bytecode(path: Path) -> None:
    """Remove what did not fit on the disk or below ``ulimit -f``: Python did not notice, and could not import it."""
    with suppress(OSError):
        try:
            SourcelessFileLoader(path.stem, str(path)).get_code(path.stem)
        except (EOFError, TypeError, ValueError, ImportError):
            path.unlink()


def build_environment(config: Config, boot: Path, inherited: Mapping[str, str]) -> dict[str, str]:
    """Build the command's environment: the inherited one with our two variables."""
    entries = [str(_PACKAGED_BOOT)]
    if _SAFE_PATH.fullmatch(str(boot)):
        entries.insert(0, str(boot))
    if inherited.get("PYTHONPATH"):
        entries.append(inherited["PYTHONPATH"])
    return {**inherited, "PYTHONPATH": os.pathsep.join(entries), ENVIRONMENT_VARIABLE: config.to_environment()}


def add_forwarding(command: Sequence[str]) -> list[str]:
    """Add the options that make the command's launcher pass our variables on.

    Open MPI passes to other hosts only the variables that ``-x`` names; MPICH's and Intel's launchers pass all.
    """
    if Path(command[0]).name not in _MPI_LAUNCHERS or not _is_open_mpi(command[0]):
        return list(command)
    return [command[0], "-x", "PYTHONPATH", "-x", ENVIRONMENT_VARIABLE, *command[1:]]


def _is_open_mpi(program: str) -> bool:
    words = [program, "--version"]
    try:  # standard input is the training's own
        result = subprocess.run(
            words, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=_TIMEOUT_S, check=False
        )
    except (OSError, subprocess.SubprocessError):
        return False
    return "Open MPI" in result.stdout or "OpenRTE" in result.stdout


def find_obstacles(command: Sequence[str], inherited: Mapping[str, str] | None = None) -> list[str]:
    """Find reasons why the hook may not reach the ranks, in words, before the command starts."""
    program = Path(command[0]).name
    if program == "srun":
        return _find_srun_obstacles(command, inherited or {})
    if program == "deepspeed":
        return _find_deepspeed_obstacles()
    if program.startswith("python"):
        return [
            f"python {word} ignores PYTHONPATH or sitecustomize: nothing will be captured"
            for word in command
            if re.fullmatch(r"-[A-Za-z]*[IES][A-Za-z]*", word)
        ]
    return []


def _find_srun_obstacles(command: Sequence[str], inherited: Mapping[str, str]) -> list[str]:
    obstacles = [
        f"{name}={value} keeps PYTHONPATH from the ranks: unset it, or give srun --export=ALL"
        for name in ("SLURM_EXPORT_ENV", "SRUN_EXPORT_ENV")
        if (value := inherited.get(name)) and "ALL" not in value
    ]
    exports = [word.removeprefix("--export=") for word in command if word.startswith("--export=")]
    exports += [value for word, value in pairwise([*command, ""]) if word == "--export"]
    obstacles += [
        f"--export={export} keeps PYTHONPATH from the ranks: add ALL" for export in exports if "ALL" not in export
    ]
    return obstacles


def _find_deepspeed_obstacles() -> list[str]:
    obstacles = []
    if Path("sitecustomize.py").exists():
        obstacles.append(
            "deepspeed puts the working directory first, so its sitecustomize.py hides the hook: rename it"
        )
    files = (folder / ".deepspeed_env" for folder in (Path.home(), Path()))
    obstacles += [
        f"{file} sets PYTHONPATH, which hides the hook on other nodes" for file in files if _sets_pythonpath(file)
    ]
    return obstacles


def _sets_pythonpath(file: Path) -> bool:
    return file.is_file() and any(line.strip().startswith("PYTHONPATH=") for line in file.read_text().splitlines())
