"""Which launchers are on PATH, and whether they start the Python that perfscope is installed in."""

from __future__ import annotations

import os
import re
import shutil
import sys
from pathlib import Path

from perfscope.doctor.check import Check, ok, warn

_LAUNCHERS = ("torchrun", "deepspeed", "accelerate", "mpirun", "srun")
_LONGEST_SHEBANG = 512


def check_launchers() -> Check:
    """Find the launchers on PATH; a launcher of another environment starts ranks that the hook may not fit."""
    paths = {name: path for name in _LAUNCHERS if (path := shutil.which(name))}
    if not paths:
        fix = "activate the environment that trains"
        return warn("Launchers", "none on PATH; python itself can always be profiled", fix)
    foreign = [f"{name} at {path}" for name, path in paths.items() if _uses_another_python(Path(path))]
    if foreign:
        fix = f"put {Path(sys.executable).parent} first on PATH, or install perfscope there"
        return warn("Launchers", f"they start another Python: {', '.join(foreign)}", fix)
    missing = [name for name in _LAUNCHERS if name not in paths]
    return ok("Launchers", ", ".join(paths) + (f"; not on PATH: {', '.join(missing)}" if missing else ""))


def _uses_another_python(program: Path) -> bool:
    """Whether a script's first line names another Python."""
    with program.open("rb") as file:
        first_line = file.readline(_LONGEST_SHEBANG)
    match = re.match(rb"#!\s*(\S*/python[\d.]*)\s*$", first_line)
    return match is not None and Path(os.fsdecode(match[1])).parent != Path(sys.executable).parent
