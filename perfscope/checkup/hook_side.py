"""Whether the hook reaches a Python that a launcher starts, and whether what it wraps is in the installed versions."""

from __future__ import annotations

import os
import re
import shutil
import sys
import tempfile
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from importlib.metadata import PackageNotFoundError, version
from importlib.util import find_spec
from pathlib import Path

from perfscope.checkup.probing import probe
from perfscope.checkup.verdict import Check, fail, ok, warn
from perfscope.frameworks import WATCHED
from perfscope.hooks.config import Config
from perfscope.hooks.reach import launch

_AT_ONCE = 4
LAUNCHERS = ("torchrun", "deepspeed", "accelerate", "mpirun", "srun")
_DISTRIBUTIONS = {"megatron": "megatron-core", "lightning": "lightning", "pytorch_lightning": "pytorch-lightning"}

_IS_ACTIVE = """
answer["active"] = "_perfscope_imports" in sys.modules
answer["site"] = getattr(sys.modules.get("sitecustomize"), "__file__", None)
"""
_SHADOWED = """
import importlib.util
spec = importlib.util.find_spec("sitecustomize")
answer["site"] = spec.origin if spec else None
"""
_IMPORT = """
import importlib
answer["absent"] = []
for name in {names}:
    try:
        importlib.import_module(name)
    except Exception as error:
        answer["absent"].append(name)
"""


def check_hook() -> list[Check]:
    """Start a Python as a launcher would, and see whether the hook is in it."""
    with tempfile.TemporaryDirectory(prefix="perfscope-doctor-") as folder:
        environment = _hooked(Path(folder) / "run")
        tried = probe(_IS_ACTIVE, environment)
        checks = [_activity(tried.answer, tried.problem)]
        with ThreadPoolExecutor(_AT_ONCE) as pool:  # importing a framework takes seconds
            checks += pool.map(partial(_hooked_names, environment=environment), _packages())
    doubts = launch.doubts(["deepspeed"])
    checks += [warn("Hook under deepspeed", doubt, "see the text") for doubt in doubts]
    return checks


def _hooked(run_dir: Path) -> dict[str, str]:
    config = Config(run_dir=str(run_dir), windows=(), nvml_hz=0)
    return launch.environment(config, launch.prepare(config), os.environ)


def _activity(answer: dict[str, object] | None, problem: str) -> Check:
    if answer is None:
        return fail("Hook", f"Python does not start under it: {problem}", "report the last line above")
    if not answer["active"]:
        site = answer["site"]
        mend = "rename it, or take its folder off PYTHONPATH" if site else "no -I, -E or -S may be in the command"
        return fail("Hook", f"it is not active: {site or 'no sitecustomize'} runs instead", mend)
    shadowed = (probe(_SHADOWED).answer or {}).get("site")
    if shadowed and Path(str(shadowed)).parent != Path(__file__).parent:
        return ok("Hook", f"active in a Python that a launcher starts; {shadowed} runs behind it")
    return ok("Hook", "active in a Python that a launcher starts")


def _packages() -> list[str]:
    """The installed packages that hold something to wrap."""
    return [name for name in sorted({name.split(".")[0] for name in WATCHED}) if find_spec(name) is not None]


def _hooked_names(package: str, environment: dict[str, str]) -> Check:
    """Import what is wrapped, with the hook active, which itself says what it does not find."""
    part = f"Hooks of {package}"
    names = sorted(name for name in WATCHED if name.split(".")[0] == package)
    tried = probe(_IMPORT.format(names=names), environment)
    installed = _version(package)
    if tried.answer is None:
        return fail(part, f"{installed} cannot be imported: {tried.problem}", f"try: python -c 'import {package}'")
    off = re.findall(r"perfscope: (.+? is off): this version of (\S+) differs", tried.stderr)
    off += re.findall(r"perfscope: (\S+) is (not hooked)", tried.stderr)
    if off:
        told = "; ".join(" in ".join(pair) for pair in off)
        return warn(part, f"{installed}: {told}", "those records will be missing; everything else is captured")
    absent: list[str] = tried.answer["absent"]
    missing = f"; not in this version: {', '.join(absent)}" if absent else ""
    return ok(part, f"{installed}: {len(names) - len(absent)} modules wrapped{missing}")


def _version(package: str) -> str:
    try:
        return version(_DISTRIBUTIONS.get(package, package))
    except PackageNotFoundError:
        return "of unknown version"


def check_launchers() -> Check:
    """Launchers on PATH; one of another environment starts ranks that perfscope's hook may not fit."""
    found = {name: path for name in LAUNCHERS if (path := shutil.which(name))}
    if not found:
        return warn("Launchers", "none on PATH: python itself is always there", "activate the environment that trains")
    foreign = [name for name, path in found.items() if _is_foreign(Path(path))]
    if foreign:
        here = Path(sys.executable).parent
        told = ", ".join(f"{name} at {found[name]}" for name in foreign)
        return warn("Launchers", f"of another Python: {told}", f"put {here} first on PATH, or install perfscope there")
    absent = [name for name in LAUNCHERS if name not in found]
    return ok("Launchers", f"{', '.join(found)}{'; not here: ' + ', '.join(absent) if absent else ''}")


def _is_foreign(program: Path) -> bool:
    """Whether a script's first line names another Python."""
    with program.open("rb") as file:
        first = file.readline(512)
    match = re.match(rb"#!\s*(\S*/python[\d.]*)\s*$", first)
    return match is not None and Path(os.fsdecode(match[1])).parent != Path(sys.executable).parent
