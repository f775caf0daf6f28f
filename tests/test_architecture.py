"""The folders are what CONTRIBUTING says; import-linter holds the contracts of imports."""

from __future__ import annotations

import re
import tomllib

from perfscope.engine.registry import BUILT_IN
from tests.conftest import ROOT

ROW = re.compile(r"^\| `(?P<folder>[\w/]+)/` +\| [^|]+ \|$", re.MULTILINE)


def test_the_table_lists_every_folder_of_the_product_that_is_there() -> None:
    listed = set(ROW.findall((ROOT / "CONTRIBUTING.md").read_text()))
    assert {folder for folder in listed if not (ROOT / folder).is_dir()} == set()
    inside = {f"perfscope/{path.name}" for path in (ROOT / "perfscope").iterdir() if any(path.glob("*.py"))}
    assert inside - {"perfscope/analyzers", "perfscope/hooks"} | {"analyzers", "hooks", "benchmarks"} <= listed


def test_the_contracts_count_every_import() -> None:
    configuration = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["importlinter"]
    assert configuration["exclude_type_checking_imports"] is False
    assert not any("ignore_imports" in contract for contract in configuration["contracts"])


def test_the_modules_of_analyzers_are_what_only_takes() -> None:
    names = {analyzer.name for analyzer in BUILT_IN}
    owners = {analyzer.module.split(".")[2] for analyzer in BUILT_IN}
    modules = {path.stem for path in (ROOT / "analyzers").glob("*.py")} - {"__init__"}
    assert modules <= names
    assert owners - modules <= {path.name for path in (ROOT / "analyzers").iterdir() if path.is_dir()}
