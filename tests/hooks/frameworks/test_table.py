"""The table of frameworks says what the files of hooks hold: it is read before any of them is loaded."""

from __future__ import annotations

import subprocess
import sys
from collections import Counter
from importlib import import_module

import pytest

from perfscope.frameworks import FRAMEWORK_HOOKS, STEP_BOUNDARIES, WATCHED, FrameworkHooks
from tests.conftest import ROOT

SHARED = {"__init__", "optimizer_steps", "wrapping"}


@pytest.mark.parametrize("hooks", FRAMEWORK_HOOKS, ids=lambda hooks: hooks.file)
def test_a_file_patches_what_its_entry_watches(hooks: FrameworkHooks) -> None:
    patches = import_module(f"perfscope.hooks.frameworks.{hooks.file}").PATCHES
    assert sorted(patches) == sorted(hooks.watches)
    assert all(patches.values())


def test_every_file_has_an_entry() -> None:
    files = {file.stem for file in (ROOT / "hooks" / "frameworks").glob("*.py")} - SHARED
    assert Counter(hooks.file for hooks in FRAMEWORK_HOOKS) == Counter(files)


def test_every_file_that_watches_a_module_patches_it_and_no_boundary_has_the_priority_of_another() -> None:
    assert Counter((module, file) for module, files in WATCHED.items() for file in files) == Counter(
        (module, hooks.file) for hooks in FRAMEWORK_HOOKS for module in hooks.watches
    )
    assert WATCHED["transformers.trainer"] == ("library_saves",)
    assert all(len(files) == len(set(files)) for files in WATCHED.values())
    assert len(STEP_BOUNDARIES) == sum(len(hooks.boundaries) for hooks in FRAMEWORK_HOOKS)
    assert len({boundary.priority for boundary in STEP_BOUNDARIES.values()}) == len(STEP_BOUNDARIES)


def test_the_table_imports_nothing() -> None:
    script = (
        "import importlib.util, sys\n"
        "before = set(sys.modules)\n"
        f"spec = importlib.util.spec_from_file_location('table', {str(ROOT / 'perfscope' / 'frameworks.py')!r})\n"
        "spec.loader.exec_module(importlib.util.module_from_spec(spec))\n"
        "assert set(sys.modules) == before, set(sys.modules) - before\n"
    )
    subprocess.run([sys.executable, "-S", "-c", script], check=True, timeout=60)
