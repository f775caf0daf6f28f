"""The notebook as a page: its cells, and the outputs that it was saved with."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any, TypeAlias

NOTEBOOK = Path(__file__).resolve().parents[1] / "notebook.ipynb"
#: A cell, and an output of it, as the format of notebooks has them.
Cell: TypeAlias = dict[str, Any]


def write_notebook() -> str:
    """The page."""
    cells = json.loads(NOTEBOOK.read_text())["cells"]
    return "\n\n".join(block for cell in cells for block in _write_cell(cell)) + "\n"


def _write_cell(cell: Cell) -> Iterator[str]:
    text = "".join(cell["source"])
    if cell["cell_type"] == "markdown":
        yield text
        return
    yield f"```python\n{text}\n```"
    for output in cell["outputs"]:
        data = output.get("data", {})
        if "text/markdown" in data:
            yield "".join(data["text/markdown"])
        elif "text/html" in data:
            yield f'<div class="notebook-output">{"".join(data["text/html"])}</div>'
        else:
            yield f"```text\n{''.join(data.get('text/plain', output.get('text', ''))).rstrip()}\n```"
