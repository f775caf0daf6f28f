"""How large the project is, and how many places a stranger has to know: the figures that it promises to keep.

Run ``python -m benchmarks.code_statistics [CHECKOUT]``. Lines are counted as ruff formats them at 120 columns.
``tests/test_code_statistics.py`` holds the limits.
"""

from __future__ import annotations

import ast
import re
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

from tabulate import tabulate

ROOT = Path(__file__).resolve().parent.parent
FOLDERS = ("perfscope", "analyzers", "hooks")
LONGEST_SENTENCE = 30

#: Executed by the checkout's own interpreter: a log of four lines is read, and the calls below ``read_log`` counted.
_READ_A_LOG = """
import pathlib, sys, tempfile
from perfscope.sources.joblog import read_log
log = pathlib.Path(tempfile.mkdtemp()) / "a.log"
log.write_text("".join(f"iter {i}: loss 2.1{i}, time 133.2{i}ms, mfu 30.12%\\n" for i in range(4)))
modules, depth, deepest = set(), 0, 0
def count(frame, event, argument):
    global depth, deepest
    if "perfscope" in (name := frame.f_globals.get("__name__", "")) and event in ("call", "return"):
        depth += 1 if event == "call" else -1
        deepest = max(deepest, depth)
        if frame.f_code.co_name != "<module>":
            modules.add(name)
sys.setprofile(count)
read_log(log)
sys.setprofile(None)
print(len(modules), deepest)
"""
_COUNT_COMMANDS = """
import typer
from perfscope.cli import app
names, options = 0, 0
def walk(group):
    global names, options
    context = typer.Context(group)
    for name in group.list_commands(context):
        command = group.get_command(context, name)
        if command.hidden:
            continue
        if hasattr(command, "list_commands"):
            walk(command)
            continue
        names += 1
        named = [parameter for parameter in command.params if parameter.param_type_name == "option"]
        options += sum(parameter.name != "help" for parameter in named)
walk(typer.main.get_command(app))
print(names, options)
"""
_COUNT_FOLDERS = """
import pathlib, sys
from perfscope.cli import COMMANDS
from perfscope.engine.registry import BUILT_IN, FINDINGS
names = {analyzer.name for analyzer in BUILT_IN} | {FINDINGS} | set(COMMANDS)
found = {path.stem for path in pathlib.Path("analyzers").iterdir() if path.suffix in ("", ".py")}
print(len({name for name in found if not name.startswith("_")} - names))
"""


@dataclass(frozen=True)
class Module:
    """One module of the product."""

    file: str
    text: str

    @cached_property
    def tree(self) -> ast.Module:
        """The text, parsed."""
        return ast.parse(self.text)

    @property
    def lines(self) -> int:
        """Lines of the file."""
        return self.text.count("\n")


@dataclass(frozen=True)
class Checkout:
    """A working tree of the project."""

    root: Path

    @cached_property
    def modules(self) -> tuple[Module, ...]:
        """What ships. The links ``perfscope/analyzers`` and ``perfscope/hooks`` lead to folders of their own."""
        return tuple(
            Module(str(path.relative_to(self.root)), path.read_text("utf-8"))
            for folder in FOLDERS
            for path in sorted((self.root / folder).rglob("*.py"))
            if not any(parent.is_symlink() for parent in path.parents)
        )

    @property
    def lines(self) -> int:
        """Lines of Python that ship."""
        return sum(module.lines for module in self.modules)

    @property
    def lines_of_c(self) -> int:
        """Lines of C that ship."""
        return sum(_lines(path) for pattern in ("*.c", "*.h") for path in (self.root / "hooks").rglob(pattern))

    def lines_in(self, folder: str) -> int:
        """Lines of Python in a folder that does not ship."""
        return sum(_lines(path) for path in (self.root / folder).rglob("*.py"))

    def files_in(self, folder: str, pattern: str = "*") -> list[Path]:
        """Files of a folder, at any depth."""
        return [
            path for path in (self.root / folder).rglob(pattern) if path.is_file() and "__pycache__" not in path.parts
        ]

    @property
    def repeated_class_names(self) -> list[str]:
        """Public names of classes that several modules define."""
        names = Counter(
            node.name
            for module in self.modules
            for node in module.tree.body
            if isinstance(node, ast.ClassDef) and not node.name.startswith("_")
        )
        return sorted(name for name, count in names.items() if count > 1)

    @property
    def thresholds(self) -> list[str]:
        """Numbers that a module names in capitals, as ``FILE NAME``; units of measure are none."""
        return [
            f"{module.file} {name}"
            for module in self.modules
            if not module.file.endswith("constants.py")
            for name, value in _constants(module.tree)
            if _is_number(value)
        ]

    @property
    def long_sentences(self) -> list[str]:
        """Sentences of documents and docstrings with more than 30 words, as ``FILE: SENTENCE``."""
        documents = [self.root / "README.md", self.root / "CONTRIBUTING.md", *self.files_in("docs", "*.md")]
        texts = [(str(path.relative_to(self.root)), _prose(path.read_text("utf-8"))) for path in documents]
        texts += [(module.file, text) for module in self.modules for text in _docstrings(module.tree)]
        return [
            f"{file}: {sentence}"
            for file, text in texts
            for sentence in _sentences(text)
            if len(sentence.split()) > LONGEST_SENTENCE
        ]

    def run(self, script: str) -> list[int]:
        """The numbers that a script prints in this checkout, with its own environment where it has one."""
        own = self.root / ".venv" / "bin" / "python"
        interpreter = str(own) if own.exists() else sys.executable
        done = subprocess.run([interpreter, "-c", script], cwd=self.root, capture_output=True, text=True, check=True)
        return [int(word) for word in done.stdout.split()]


@dataclass(frozen=True)
class Row:
    """A figure and the most that it may be."""

    name: str
    figure: float
    target: float


def measure(checkout: Checkout) -> list[Row]:
    """Every figure."""
    modules, frames = checkout.run(_READ_A_LOG)
    commands, options = checkout.run(_COUNT_COMMANDS)
    (folders,) = checkout.run(_COUNT_FOLDERS)
    fixtures = checkout.files_in("fixtures")
    return [
        Row("Lines of Python that ship", checkout.lines, 68_000),
        Row("Lines of C", checkout.lines_of_c, 0),
        Row("Lines of benchmarks", checkout.lines_in("benchmarks"), 3_500),
        Row("Files of benchmarks", len(checkout.files_in("benchmarks", "*.py")), 18),
        Row("Lines of tests", checkout.lines_in("tests"), 32_000),
        Row("Files of fixtures", len(fixtures), 800),
        Row("MB of fixtures", round(sum(path.stat().st_size for path in fixtures) / 1e6, 1), 40),
        Row("Modules executed for a log of four lines", modules, 15),
        Row("Deepest call below `read_log`", frames, 6),
        Row("Class names of several modules", len(checkout.repeated_class_names), 10),
        Row("Thresholds", len(checkout.thresholds), 250),
        Row("Entries of analyzers/ that no command line takes", folders, 0),
        Row("Commands", commands, 18),
        Row("Options", options, 160),
        Row("Sentences of more than 30 words", len(checkout.long_sentences), 0),
        Row("Lines of docs", sum(_lines(path) for path in checkout.files_in("docs", "*.md")), 2_800),
        Row("Reports", len(checkout.files_in("reports", "*.md")) - 1, 14),
    ]


def _lines(path: Path) -> int:
    return path.read_text("utf-8").count("\n")


def _constants(tree: ast.Module) -> Iterator[tuple[str, ast.expr]]:
    for node in tree.body:
        if isinstance(node, ast.Assign) and len(node.targets) == 1 and isinstance(node.targets[0], ast.Name):
            name = node.targets[0].id
            if name.isupper():
                yield name, node.value


def _is_number(value: ast.expr) -> bool:
    """A number, or arithmetic of numbers and names such as ``5 * NS_PER_S``."""
    if isinstance(value, ast.BinOp):
        return _is_number(value.left) or _is_number(value.right)
    return isinstance(value, ast.Constant) and type(value.value) in (int, float)


def _docstrings(tree: ast.Module) -> Iterator[str]:
    for node in ast.walk(tree):
        if isinstance(node, (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)):
            yield ast.get_docstring(node) or ""


def _prose(text: str) -> str:
    """A document without code and tables; an entry of a list is a sentence."""
    text = re.sub(r"```.*?```", ".\n\n", text, flags=re.S)
    text = re.sub(r"^\|.*$", "", text, flags=re.M)
    return re.sub(r"^(#.*|\s*([-*]|\d+\.) )", r".\n\n", text, flags=re.M)


def _sentences(text: str) -> Iterator[str]:
    for paragraph in re.split(r"\n\s*\n|\n\s+(?=\w+:)", text):
        yield from re.split(r"(?<=[.!?])\s+", " ".join(paragraph.split()))


def main() -> None:
    """Print the figures of this checkout, or of another one; with ``--list`` the names and sentences that count."""
    folders = [word for word in sys.argv[1:] if word != "--list"]
    checkout = Checkout(Path(folders[0]).resolve() if folders else ROOT)
    rows = [(row.name, row.figure, row.target) for row in measure(checkout)]
    print(tabulate(rows, headers=("", "now", "at most"), tablefmt="pipe", floatfmt=",.10g", intfmt=","))
    if "--list" in sys.argv:
        print("\n".join((*checkout.repeated_class_names, *checkout.thresholds, *checkout.long_sentences)))


if __name__ == "__main__":
    main()
