"""A table for the tests of `perfscope report refresh`, and its recomputed cells."""

from __future__ import annotations

from tests.commands.report_cli import Run

TABLE = """\
# Runs

| GPUs | Size | DP | PP | GAS | MBS |  GBS | Speed | TFlops | Notes |
| ---: | ---: | -: | -: | --: | --: | ---: | ----: | -----: | ----: |
|   64 | 52B  |  1 | 16 | 256 |   4 | 1024 | 137s  |   46.7 | a     |
|   64 | 52B  |  1 | 16 | 256 |   4 | 1024 | 126s  |   54.1 | b     |
|      |      |    |    |     |     |      |       |        |       |
|   64 | 52B  |  2 |  8 | 256 |   3 | 1536 | 208   |   49.1 | c     |
|   16 | 7.5B |  1 |  4 |   4 |   1 |    4 | 0.661s |  23.2 | d     |
|   64 | 52B  |  1 | 16 | 256 |   8 | 2048 | OOM   |        | e     |

Sequence length is 1024, `TP=4` in all of them.
"""


def by_row(answer: Run, column: str = "TFlops") -> dict[int, tuple[str, str, str]]:
    cells = answer.data["results"]["cells"]
    return {
        cell["line"]: (cell["published"], cell["text"], cell["verdict"]) for cell in cells if cell["column"] == column
    }
