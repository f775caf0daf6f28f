"""Whether the hook is active in a Python that a launcher starts, and fits the installed versions of frameworks."""

from __future__ import annotations

import os
import re
import tempfile
from collections.abc import Mapping, Sequence
from importlib.metadata import PackageNotFoundError, version
from importlib.util import find_spec
from pathlib import Path

from perfscope.doctor.check import Check, fail, ok, warn
from perfscope.doctor.probe import ProbeResult, probe
from perfscope.frameworks import WATCHED
from perfscope.hooks.config import Config
from perfscope.hooks.reach import launch

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
        checks += _check_packages(_find_packages(), environment)
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
    return [name for name in sorted({_package_of(name) for name in WATCHED}) if find_spec(name) is not None]


def _check_packages(packages: Sequence[str], environment: Mapping[str, str]) -> list[Check]:
    """Import the wrapped modules of all packages in one process: nearly all of them load torch, which takes seconds.

    Where that process fails, each package is imported in a process of its own, which shows the one that fails.
    """
    together = _import_modules(packages, environment)
    if together.values is not None:
        return [_check_package(package, together) for package in packages]
    return [_check_package(package, _import_modules([package], environment)) for package in packages]


def _import_modules(packages: Sequence[str], environment: Mapping[str, str]) -> ProbeResult:
    return probe(_IMPORT.format(names=[name for package in packages for name in _modules_of(package)]), environment)


def _modules_of(package: str) -> list[str]:
    return sorted(name for name in WATCHED if _package_of(name) == package)


def _package_of(module: str) -> str:
    return module.split(".", 1)[0]


def _check_package(package: str, result: ProbeResult) -> Check:
    """Judge how a package was imported with the hook active, which itself reports what it cannot wrap."""
    part = f"Hooks of {package}"
    installed = _installed_version(package)
    if result.values is None:
        return fail(part, f"{installed} cannot be imported: {result.problem}", f"try: python -c 'import {package}'")
    names = _modules_of(package)
    off = re.findall(r"perfscope: (.+? is off): this version of (\S+) differs", result.stderr)
    unhooked = re.findall(r"perfscope: (\S+) is not hooked", result.stderr)
    problems = [f"{text} in {module}" for text, module in off if _package_of(module) == package]
    problems += [f"{module} is not hooked" for module in unhooked if _package_of(module) == package]
    if problems:
        finding = "; ".join(problems)
        return warn(part, f"{installed}: {finding}", "none: those records will be missing, all others are captured")
    missing = [name for name in result.values["missing"] if name in names]
    note = f"; not in this version: {', '.join(missing)}" if missing else ""
    count = len(names) - len(missing)
    return ok(part, f"{installed}: {count} {'module' if count == 1 else 'modules'} wrapped{note}")


def _installed_version(package: str) -> str:
    try:
        return version(_DISTRIBUTIONS.get(package, package))
    except PackageNotFoundError:
        return "of unknown version"
