"""Statistics of the code: size of functions and files, names that say nothing, suppressed rules, imports in functions.

Run ``python -m benchmarks.code_statistics``; a folder of another version as argument is measured instead. Counted are
the modules of the package; tests and benchmarks are not. ``tests/test_code_statistics.py`` holds the limits.
"""

from __future__ import annotations

import ast
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

ROOT = Path(__file__).resolve().parent.parent
FOLDERS = ("perfscope", "analyzers", "hooks")

#: Names of variables, parameters and functions that say nothing of the domain.
EMPTY_NAMES = frozenset(
    {"asked", "found", "given", "gone", "held", "kept", "known", "left", "many", "meant", "more", "much"}
    | {"one", "other", "others", "place", "said", "there", "told", "wanted"}
)


@dataclass(frozen=True, slots=True)
class FunctionSize:
    """One function of the package.

    Attributes:
        location: ``FILE:LINE NAME``.
        lines: Lines of code from its ``def`` to its end.
        parameters: Its parameters.
    """

    location: str
    lines: int
    parameters: int


@dataclass(frozen=True, slots=True)
class CodeStatistics:
    """What was counted.

    Attributes:
        files: Lines of each file.
        functions: Every function.
        empty_names: Bindings with a name of EMPTY_NAMES, as ``FILE:LINE NAME``.
        suppressions: ``noqa`` comments, as ``FILE:LINE``.
        any_annotations: Uses of ``typing.Any``, as ``FILE:LINE``.
        local_imports: Imports inside functions, as ``FILE:LINE``.
        unexplained_imports: Those of them without a comment on their line or on the line above.
    """

    files: dict[str, int]
    functions: tuple[FunctionSize, ...]
    empty_names: tuple[str, ...]
    suppressions: tuple[str, ...]
    any_annotations: tuple[str, ...]
    local_imports: tuple[str, ...]
    unexplained_imports: tuple[str, ...]

    @property
    def lines(self) -> int:
        """Lines of all files."""
        return sum(self.files.values())

    def per_thousand_lines(self, occurrences: Sequence[str]) -> float:
        """Occurrences in 1,000 lines of code."""
        return 1000 * len(occurrences) / self.lines


def measure(root: Path = ROOT) -> CodeStatistics:
    """Count the code below a checkout."""
    files: dict[str, int] = {}
    functions: list[FunctionSize] = []
    names: list[str] = []
    suppressions: list[str] = []
    annotations: list[str] = []
    imports: list[str] = []
    unexplained: list[str] = []
    for path in _modules(root):
        file = str(path.relative_to(root))
        text = path.read_text("utf-8")
        lines = text.splitlines()
        tree = ast.parse(text)
        files[file] = len(lines)
        functions += _functions(file, tree)
        names += _empty_names(file, tree)
        suppressions += [f"{file}:{number}" for number, line in enumerate(lines, 1) if "# noqa" in line]
        annotations += [
            f"{file}:{node.lineno}" for node in ast.walk(tree) if isinstance(node, ast.Name) and node.id == "Any"
        ]
        for number in _local_imports(tree):
            imports.append(f"{file}:{number}")
            if not any("#" in line for line in lines[max(0, number - 2) : number]):
                unexplained.append(f"{file}:{number}")
    return CodeStatistics(
        files=files,
        functions=tuple(functions),
        empty_names=tuple(names),
        suppressions=tuple(suppressions),
        any_annotations=tuple(annotations),
        local_imports=tuple(imports),
        unexplained_imports=tuple(unexplained),
    )


def _modules(root: Path) -> Iterator[Path]:
    """The package's files; the links ``perfscope/analyzers`` and ``perfscope/hooks`` lead to folders of their own."""
    for folder in FOLDERS:
        for path in sorted((root / folder).rglob("*.py")):
            parents = [parent for parent in path.parents if parent.is_relative_to(root / folder)]
            if not any(parent.is_symlink() for parent in parents):
                yield path


def _functions(file: str, tree: ast.Module) -> Iterator[FunctionSize]:
    for node in ast.walk(tree):
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)):
            arguments = node.args
            parameters = len(arguments.posonlyargs) + len(arguments.args) + len(arguments.kwonlyargs)
            length = (node.end_lineno or node.lineno) - node.lineno
            yield FunctionSize(f"{file}:{node.lineno} {node.name}", length, parameters)


def _empty_names(file: str, tree: ast.Module) -> Iterator[str]:
    for node in ast.walk(tree):
        if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            name, line = node.id, node.lineno
        elif isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)):
            name, line = node.name.lstrip("_"), node.lineno
        elif isinstance(node, ast.arg):
            name, line = node.arg, node.lineno
        else:
            continue
        if name in EMPTY_NAMES:
            yield f"{file}:{line} {name}"


def _local_imports(tree: ast.Module) -> list[int]:
    lines = {
        node.lineno
        for function in ast.walk(tree)
        if isinstance(function, (ast.FunctionDef, ast.AsyncFunctionDef))
        for node in ast.walk(function)
        if isinstance(node, (ast.Import, ast.ImportFrom))
    }
    return sorted(lines)


def main() -> None:
    """Print the statistics of this checkout, or of another one."""
    statistics = measure(Path(sys.argv[1]).resolve() if len(sys.argv) > 1 else ROOT)
    function_lines = np.array([function.lines for function in statistics.functions])
    file_lines = np.array(list(statistics.files.values()))
    at_edge = [use for use in statistics.any_annotations if use.startswith("hooks/")]
    elsewhere = [use for use in statistics.any_annotations if not use.startswith("hooks/")]
    rows: list[tuple[str, str]] = [
        ("Files", f"{len(statistics.files)}"),
        ("Lines", f"{statistics.lines:,}"),
        ("Lines of a file: median, longest", f"{np.median(file_lines):.0f}, {file_lines.max()}"),
        (
            "Lines of a function: median, 90th percentile, longest",
            f"{np.median(function_lines):.0f}, {np.percentile(function_lines, 90):.0f}, {function_lines.max()}",
        ),
        ("Most parameters of a function", f"{max(function.parameters for function in statistics.functions)}"),
        ("Empty names per 1,000 lines", f"{statistics.per_thousand_lines(statistics.empty_names):.2f}"),
        ("noqa per 1,000 lines", f"{statistics.per_thousand_lines(statistics.suppressions):.2f}"),
        ("Any in hooks", f"{len(at_edge)}"),
        ("Any elsewhere, per 1,000 lines", f"{len(elsewhere)}, {statistics.per_thousand_lines(elsewhere):.2f}"),
        ("Imports inside functions", f"{len(statistics.local_imports)}"),
        ("... of them without a reason", f"{len(statistics.unexplained_imports)}"),
    ]
    for name, value in rows:
        print(f"{name:<56} {value}")


if __name__ == "__main__":
    main()
