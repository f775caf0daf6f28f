"""How often ``perfscope report refresh`` doubts cells of tables that other projects published.

Run: ``python -m benchmarks.published_tables FOLDER...``: each folder is a git repository of another project, of which
the newest commit is read; nothing is written. Printed are the counts by repository, and each cell that differs from
what the other cells of its table give, for a person to judge. ``fixtures/benchmarks/published-tables.json`` holds the
counts and the judgement: a flag is false if the cell follows from its table by its authors' own definition.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import tempfile
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tabulate import tabulate

from perfscope.analyzers.published.verdicts import Verdict
from perfscope.errors import PerfscopeError
from perfscope.regenerate.refresh import check_file

AGREES = (Verdict.ROUNDED, Verdict.TRUNCATED, Verdict.FROM_UNROUNDED)


@dataclass(slots=True)
class Counts:
    """What became of the tables of one repository."""

    repository: str
    commit: str
    files: int = 0
    cells: Counter[str] = field(default_factory=Counter)
    flags: list[str] = field(default_factory=list)


def count(repository: Path) -> Counts:
    """Check every markdown file of a repository's newest commit."""
    git = ("git", "-C", str(repository))
    commit = subprocess.run((*git, "rev-parse", "--short=7", "HEAD"), capture_output=True, text=True, check=True)
    names = subprocess.run((*git, "ls-tree", "-r", "-z", "--name-only", "HEAD"), capture_output=True, check=True)
    counts = Counts(repository.resolve().parent.name.replace("+", "/"), commit.stdout.strip())
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "file.md"
        for name in names.stdout.split(b"\0"):
            if name.lower().endswith(b".md"):
                text = subprocess.run((*git, "show", b"HEAD:" + name), capture_output=True, check=False).stdout
                path.write_bytes(text)
                counts.files += 1
                _check(path, name.decode(errors="replace"), counts)
    return counts


def _check(path: Path, name: str, counts: Counts) -> None:
    try:
        checked = check_file(path, {}, None)
    except PerfscopeError:
        return
    for cell in checked.tables.cells:
        kind = "agrees" if cell.verdict in AGREES else str(cell.verdict)
        counts.cells[kind] += 1
        if cell.verdict not in (*AGREES, Verdict.CONVENTION):
            place = f"{name}:{cell.line}: {cell.column}"
            counts.flags.append(f"{place}: {cell.published or 'empty'}, recomputed {cell.text}")


def document(raw: dict[str, Any]) -> str:
    """The table of the report."""
    headings = ("Repository", "Commit", "Files", "Cells that agree", "Other convention", "Flagged", "False flags")
    keys = ("repository", "commit", "files", "agrees", "other convention", "flagged", "false")
    rows = [[row[key] for key in keys] for row in raw["repositories"]]
    sums = [sum(row[column] for row in rows) for column in range(2, len(keys))]
    table: str = tabulate([*rows, ["all", "", *sums]], headings, tablefmt="pipe", disable_numparse=True)
    return table


def main() -> None:
    """Print the counts, as JSON, and each flagged cell."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("repositories", nargs="+", type=Path)
    rows = []
    for repository in parser.parse_args().repositories:
        counts = count(repository)
        rows.append(
            {
                "repository": counts.repository,
                "commit": counts.commit,
                "files": counts.files,
                "agrees": counts.cells["agrees"],
                "other convention": counts.cells[str(Verdict.CONVENTION)],
                "flagged": len(counts.flags),
                "false": None,
            }
        )
        print("\n".join(f"{counts.repository} {flag}" for flag in counts.flags))
    print(json.dumps({"repositories": rows}, indent=1))


if __name__ == "__main__":
    main()
