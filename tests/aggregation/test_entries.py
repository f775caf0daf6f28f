"""Long lists of JSON are told by columns, and become tables."""

from __future__ import annotations

from typing import Any

from perfscope.aggregation.entries import condense, list_tables
from perfscope.report import Json

MANY = 2_000


def entry_of(rank: int) -> dict[str, Json]:
    """An entry whose keys are not those of every other one."""
    late = {"late_us": rank / 3} if rank % 2 else {}
    steps: list[Json] = [{"name": f"step {step}", "us": float(step * rank)} for step in range(rank % 3)]
    return {"rank": rank, "calls": rank % 7, **late, "mixed": rank if rank % 5 else rank / 2, "steps": steps}


def test_tables_have_a_cell_for_every_key_of_any_entry() -> None:
    tables = {table.name: table for table in list_tables({"a": {"ranks": [entry_of(rank) for rank in range(MANY)]}})}
    ranks, steps = tables["a.ranks"], tables["a.ranks.steps"]
    #: An empty list is a cell; one with entries is a table of its own.
    assert ranks.columns == ["rank", "calls", "mixed", "steps", "late_us"]
    for rank, row in enumerate(ranks.rows()):
        entry = entry_of(rank) | {"steps": None if rank % 3 else "[]"}
        assert row == [entry.get(column) for column in ranks.columns]
    assert len(steps.rows()) == sum(rank % 3 for rank in range(MANY))


def test_quantiles_are_cells_as_they_are() -> None:
    condensed = condense({"a": {"ranks": [entry_of(rank) for rank in range(MANY)]}}, {})
    described: Any = condensed.lists["/results/a/ranks"]
    quantiles = described["quantiles"]
    assert list(quantiles) == ["calls", "mixed", "late_us"]
    for key in quantiles:
        every: list[Any] = [entry_of(rank).get(key) for rank in range(MANY)]
        cells = sorted(cell for cell in every if cell is not None)
        assert quantiles[key]["median"] == cells[(len(cells) + 1) // 2 - 1]
        assert type(quantiles[key]["largest"]) is type(cells[-1])
