"""The report on late ranks is what the records of its runs give, and names the right cause in at least nine of ten."""

from __future__ import annotations

from benchmarks.stragglers import FIXTURES, GPU_RUNS, REPORT, all_cases, judge, judge_folder, to_markdown


def test_the_report_is_written_from_the_fixtures() -> None:
    cases = [case for case in all_cases() if (FIXTURES / case).is_dir()]
    answers = [judge(case, FIXTURES / case) for case in cases]
    assert len(cases) >= 40
    assert REPORT.read_text() == to_markdown(answers)
    injected = [answer for answer in answers if ".clean" not in answer.case]
    assert sum(answer.is_right for answer in injected) >= 0.9 * len(injected)
    assert all(answer.is_right for answer in answers if ".clean" in answer.case)


def test_on_gpus_the_rank_and_the_cause_are_found_and_clean_trainings_are_calm() -> None:
    answers = [answer for folder in GPU_RUNS.values() if folder.is_dir() for answer in judge_folder(folder)]
    assert len(answers) >= 11
    injected = [answer for answer in answers if ".clean" not in answer.case]
    assert sum(answer.is_right for answer in injected) >= 0.9 * len(injected)
    assert all(answer.is_right for answer in answers if ".clean" in answer.case)
