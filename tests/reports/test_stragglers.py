"""The report on late ranks is what the records of its runs give, and names the right cause in at least nine of ten."""

from __future__ import annotations

import json

import pytest

from benchmarks.stragglers import (
    FIXTURES,
    GPU_RUNS,
    LATE,
    LATE_RANKS,
    REPORT,
    all_cases,
    judge,
    judge_folder,
    to_markdown,
)


def test_the_report_is_written_from_the_fixtures() -> None:
    cases = [case for case in all_cases() if (FIXTURES / case).is_dir()]
    answers = [judge(case, FIXTURES / case) for case in cases]
    assert len(cases) >= 40
    assert REPORT.read_text() == to_markdown(answers)
    injected = [answer for answer in answers if ".clean" not in answer.case]
    assert sum(answer.is_right for answer in injected) >= 0.9 * len(injected)
    assert all(answer.is_right for answer in answers if ".clean" in answer.case)


@pytest.mark.parametrize("run", GPU_RUNS)
def test_on_gpus_no_answer_is_worse_than_the_first_one_and_clean_trainings_are_calm(run: str) -> None:
    folder = GPU_RUNS[run]
    answers = judge_folder(folder, LATE_RANKS.get(run, LATE))
    was_right = {row["case"]: row["right"] for row in json.loads((folder / "before.json").read_text())}
    assert was_right.keys() == {answer.case for answer in answers}
    assert not [answer for answer in answers if was_right[answer.case] and not answer.is_right]
    assert all(answer.is_right for answer in answers if ".clean" in answer.case)
