"""The packages are what CONTRIBUTING says, and import what it and the contracts allow."""

from __future__ import annotations

import re
import tomllib
from functools import cache
from pathlib import Path
from typing import Any

import grimp
import pytest

from perfscope.engine.registry import BUILT_IN
from tests.conftest import ROOT

#: Folders that are installed below the package, by the names that their modules have.
MAPPED = {"analyzers": "perfscope/analyzers", "hooks": "perfscope/hooks"}
EVERYTHING_BELOW = "all that stands below"
#: What the text above the table gives to all packages but hooks, wire and workloads.
FREE = {"perfscope.constants", "perfscope.errors", "perfscope.patterns"}
TABLE_ROW = re.compile(r"^\| `(?P<package>[\w/]+)/` +\| (?P<holds>[^|]+) \|(?P<imports>[^|]*)\|$", re.MULTILINE)


@cache
def packages() -> frozenset[str]:
    """Every folder with Python modules, as CONTRIBUTING writes it."""
    folders = {
        path.parent.relative_to(ROOT)
        for top in ("perfscope", "analyzers", "hooks", "benchmarks")
        for path in (ROOT / top).rglob("*.py")
    }
    return frozenset(
        str(folder)
        for folder in folders
        if not str(folder).startswith(tuple(MAPPED.values())) and "pycache" not in folder.name
    )


@cache
def layers() -> dict[str, int]:
    """The height of each part of the package, by the contract in pyproject.toml."""
    configuration: dict[str, Any] = tomllib.loads((ROOT / "pyproject.toml").read_text())
    contracts = configuration["tool"]["importlinter"]["contracts"]
    ordered = next(contract["layers"] for contract in contracts if contract["type"] == "layers")
    return {name: -row for row, layer in enumerate(ordered) for name in layer.replace(" ", "").split("|")}


def layer_of(name: str) -> int:
    """The height of a package of the table, or of a module of the root."""
    if name.startswith("benchmarks"):
        return 1
    parts = name.replace(".", "/").split("/")
    return layers()[parts[0] if parts[0] in MAPPED else parts[1]]


def full_name(name: str) -> str:
    """A name of the table's last column: a package below ``perfscope/`` or at the top, or a module of the root."""
    nested = f"perfscope/{name}"
    return nested if nested in packages() else name if name in packages() else f"perfscope.{name}"


def below(package: str) -> set[str]:
    """The packages and root modules that stand below a package by the contract of layers."""
    modules = {f"perfscope.{path.stem}" for path in (ROOT / "perfscope").glob("[a-z]*.py")}
    names = packages() - {"perfscope", "benchmarks"} | modules
    return {name for name in names if layer_of(name) < layer_of(package)}


@cache
def allowed_imports() -> dict[str, frozenset[str]]:
    """What each package may import by the table, what its outer packages may included."""
    rows = {}
    for match in TABLE_ROW.finditer((ROOT / "CONTRIBUTING.md").read_text()):
        names = set(map(full_name, re.findall(r"`([\w/]+)`", match["imports"])))
        rows[match["package"]] = names | (below(match["package"]) if EVERYTHING_BELOW in match["imports"] else set())
    allowed = {}
    for package, imports in rows.items():
        outer = [rows[str(parent)] | {str(parent)} for parent in Path(package).parents if str(parent) in rows]
        free = set() if package.startswith(("hooks", "perfscope/wire", "perfscope/workloads")) else FREE
        allowed[package] = frozenset().union(imports, free, *outer)
    return allowed


def package_of(module: str) -> str:
    """The table's package of a module; a module of the root is itself."""
    path = Path(module.replace(".", "/"))
    for folder, mapped in MAPPED.items():
        if path.is_relative_to(mapped):
            path = folder / path.relative_to(mapped)
    if str(path) in packages():
        return str(path)
    return module if str(path.parent) == "perfscope" else str(path.parent)


@cache
def imports() -> dict[str, frozenset[str]]:
    """The packages, and modules of the root, that the modules of each package import."""
    graph = grimp.build_graph("perfscope", "benchmarks", cache_dir=None)
    found: dict[str, set[str]] = {}
    for module in graph.modules:
        imported = {package_of(name) for name in graph.find_modules_directly_imported_by(module)}
        found.setdefault(package_of(module), set()).update(imported - {package_of(module)})
    return {package: frozenset(names) for package, names in found.items()}


def test_the_table_lists_every_package_of_the_tree() -> None:
    assert allowed_imports().keys() == packages() - {"perfscope"}


@pytest.mark.parametrize("package", sorted(packages() - {"perfscope"}))
def test_a_package_imports_what_its_row_allows(package: str) -> None:
    assert imports().get(package, frozenset()) - {"perfscope"} <= allowed_imports()[package] | {package}


@pytest.mark.parametrize("package", sorted(packages() - {"perfscope", "benchmarks"}))
def test_a_row_allows_nothing_that_the_contracts_forbid(package: str) -> None:
    inside = {name for name in allowed_imports()[package] if Path(name).parts[0] == Path(package).parts[0]}
    above = {name for name in allowed_imports()[package] - inside if layer_of(name) >= layer_of(package)}
    assert not above


def test_the_contracts_count_every_import() -> None:
    configuration = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["importlinter"]
    assert configuration["exclude_type_checking_imports"] is False
    assert not any("ignore_imports" in contract for contract in configuration["contracts"])


def test_the_modules_of_analyzers_are_what_only_takes() -> None:
    names = {analyzer.name for analyzer in BUILT_IN}
    modules = {path.stem for path in (ROOT / "analyzers").glob("*.py")} - {"__init__"}
    assert modules <= names
    assert names - modules <= {path.name for path in (ROOT / "analyzers").iterdir() if path.is_dir()}
