"""Whether the hook is active in a Python that a launcher starts, and fits the installed versions of frameworks."""

from __future__ import annotations

import os
import re
import tempfile
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from importlib.metadata import PackageNotFoundError, version
from importlib.util import find_spec
from pathlib import Path

from perfscope.doctor.check import Check, fail, ok, warn
from perfscope.doctor.probe import ProbeResult, probe
from perfscope.frameworks import WATCHED
from perfscope.hooks.config import Config
from perfscope.hooks.reach import launch

_PARALLEL_PROBES = 4
_DISTRIBUTIONS = {"megatron": "megatron-core", "lightning": "lightning", "pytorch_lightning": "pytorch-lightning"}

_IS_ACTIVE = """
result["active"] = "_perfscope_imports" in sys.modules
result["site"] = getattr(sys.modules.get("sitecustomize"), "__file__", None)
"""
_FIND_SITECUSTOMIZE = """
import importlib.util
spec = importlib.util.find_spec("sitecustomize")
result["site"] = spec.origin if spec else None
"""
_IMPORT = """
import importlib
result["missing"] = []
for name in {names}:
    try:
        importlib.import_module(name)
    except Exception as error:
        result["missing"].append(name)
"""


def check_hook() -> list[Check]:
    """Start Python as a launcher would, and see whether the hook is active in it."""
    with tempfile.TemporaryDirectory(prefix="perfscope-doctor-") as folder:
        environment = _make_environment(Path(folder) / "run")
        checks = [_check_activity(probe(_IS_ACTIVE, environment))]
        with ThreadPoolExecutor(_PARALLEL_PROBES) as pool:  # importing a framework takes seconds
            checks += pool.map(partial(_check_package, environment=environment), _find_packages())
    obstacles = launch.find_obstacles(["deepspeed"])
    return checks + [warn("Hook under deepspeed", obstacle, "see the finding") for obstacle in obstacles]


def _make_environment(run_dir: Path) -> dict[str, str]:
    config = Config(run_dir=str(run_dir), windows=(), nvml_hz=0)
    return launch.build_environment(config, launch.prepare(config), os.environ)


def _check_activity(result: ProbeResult) -> Check:
    if result.values is None:
        return fail("Hook", f"Python does not start with it: {result.problem}", "report the error in the finding")
    if not result.values["active"]:
        site = result.values["site"]
        fix = "rename it, or take its folder off PYTHONPATH" if site else "start Python without -I, -E and -S"
        return fail("Hook", f"not active: {site or 'no sitecustomize'} runs instead", fix)
    shadowed = (probe(_FIND_SITECUSTOMIZE).values or {}).get("site")
    if shadowed:
        return ok("Hook", f"active in a Python that a launcher starts; {shadowed} runs after it")
    return ok("Hook", "active in a Python that a launcher starts")


def _find_packages() -> list[str]:
    """The installed packages that the hooks wrap."""
    return [name for name in sorted({name.split(".")[0] for name in WATCHED}) if find_spec(name) is not None]


def _check_package(package: str, environment: Mapping[str, str]) -> Check:
    """Import the wrapped modules of a package with the hook active, which itself reports what it cannot wrap."""
    part = f"Hooks of {package}"
    names = sorted(name for name in WATCHED if name.split(".")[0] == package)
    result = probe(_IMPORT.format(names=names), environment)
    installed = _installed_version(package)
    if result.values is None:
        return fail(part, f"{installed} cannot be imported: {result.problem}", f"try: python -c 'import {package}'")
    problems = re.findall(r"perfscope: (.+? is off): this version of (\S+) differs", result.stderr)
    problems += re.findall(r"perfscope: (\S+) is (not hooked)", result.stderr)
    if problems:
        finding = "; ".join(" in ".join(pair) for pair in problems)
        return warn(part, f"{installed}: {finding}", "none: those records will be missing, all others are captured")
    missing: list[str] = result.values["missing"]
    note = f"; not in this version: {', '.join(missing)}" if missing else ""
    return ok(part, f"{installed}: {len(names) - len(missing)} modules wrapped{note}")


def _installed_version(package: str) -> str:
    try:
        return version(_DISTRIBUTIONS.get(package, package))
    except PackageNotFoundError:
        return "of unknown version"
