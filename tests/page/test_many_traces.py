"""The page of very many traces bears the name of their folder."""

from __future__ import annotations

import pytest

from perfscope.engine.run import Analysis
from perfscope.page import describe_analysis

MANY = 1_024


@pytest.mark.parametrize(
    ("paths", "title"),
    [
        ([f"job/rank{rank}.json" for rank in range(MANY)], "job"),
        ([f"job/host{rank % 2}/rank{rank}.json" for rank in range(MANY)], "job/host0/rank0.json"),
        (["job/rank0.json", "job/rank1.json"], "job/rank0.json"),
    ],
)
def test_the_page_of_very_many_traces_bears_the_name_of_their_folder(paths: list[str], title: str) -> None:
    assert describe_analysis(Analysis(tuple(paths), {}, (), (), None)).title == title
