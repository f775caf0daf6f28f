"""What perfscope says of trainings that nobody here wrote, beside what their frameworks' own logs say.

``python -m benchmarks.real_runs`` prints the table of reports/h200-real-runs.md, from the records and truths in
``fixtures/real_runs``.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import perfscope
from benchmarks import kept_run
from perfscope.constants import MS_PER_S
from perfscope.renderers.markdown import render_sections
from perfscope.report import Column, Section

RUNS = Path(__file__).parent.parent / "fixtures" / "real_runs"
#: Of each truth that is a number: what it is called, and what its value is multiplied by.
_FIGURES = {
    "tokens_per_s": ("tokens/s", 1.0),
    "step_time_s": ("step time (ms)", float(MS_PER_S)),
    "flops_per_token": ("MFLOP/token", 1e-6),
    "tflops_per_gpu": ("TFLOPs per GPU", 1.0),
}


def table() -> str:
    """The table in Markdown: a row for each figure of each record."""
    columns = (
        Column("Run"),
        Column("Layout"),
        Column("Figure"),
        Column("perfscope", 1),
        Column("Its own log", 1),
        Column("Difference (%)", 2),
    )
    rows = tuple(row for run in kept_runs() for row in _rows(run))
    return render_sections((Section("Figures beside the log", columns, rows),), 2)


def kept_runs() -> list[Path]:
    """The folders of all runs, by their names."""
    names = sorted({path.name.removesuffix(".tar.gz") for path in RUNS.iterdir() if path.suffix != ".md"})
    return [run.parent for name in names for run in sorted(kept_run(RUNS / name).glob("**/truth.json"))]


def _rows(run: Path) -> Iterator[tuple[str | float | None, ...]]:
    truths: dict[str, Any] = json.loads((run / "truth.json").read_text())
    document = perfscope.open(run).data
    for name, (title, factor) in _FIGURES.items():
        if name in truths:
            said, true = look_up(document, truths[name]["pointer"]), truths[name]["value"]
            change = None if said is None else 100 * (said / true - 1)
            yield run.name, _layout(run), title, None if said is None else said * factor, true * factor, change


def look_up(document: Any, pointer: str) -> Any:  # noqa: ANN401 - JSON
    """What a JSON pointer leads to; None where it leads to nothing."""
    for part in pointer.split("/")[1:]:
        if document is None:
            return None
        document = document[int(part)] if isinstance(document, list | tuple) else document.get(part)
    return document


def _layout(run: Path) -> str:
    """The sizes of the axes that split the ranks."""
    sizes: dict[str, int] = json.loads((run / "ranks" / "00000" / "parallel.json").read_text())["sizes"]
    return " ".join(f"{axis} {size}" for axis, size in sizes.items() if size > 1)


if __name__ == "__main__":
    print(table())
