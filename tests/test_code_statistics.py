"""The code keeps the limits that CONTRIBUTING states; `python -m benchmarks.code_statistics` prints the figures."""

from __future__ import annotations

from functools import cache

from benchmarks.code_statistics import CodeStatistics, measure

LONGEST_FUNCTION = 60
LONGEST_FILE = 400
MOST_PARAMETERS = 12
MOST_LOCAL_IMPORTS = 20


@cache
def statistics() -> CodeStatistics:
    return measure()


def test_no_function_is_long() -> None:
    assert not [function.location for function in statistics().functions if function.lines > LONGEST_FUNCTION]


def test_no_function_takes_more_than_twelve_parameters() -> None:
    assert not [function.location for function in statistics().functions if function.parameters > MOST_PARAMETERS]


def test_no_file_is_long() -> None:
    assert not [file for file, lines in statistics().files.items() if lines > LONGEST_FILE]


def test_names_are_words_of_the_domain() -> None:
    names = statistics().empty_names
    assert statistics().per_thousand_lines(names) <= 2, names


def test_rules_are_kept_rather_than_suppressed() -> None:
    suppressions = statistics().suppressions
    assert statistics().per_thousand_lines(suppressions) <= 1, suppressions


def test_types_are_known_outside_the_hooks_around_untyped_frameworks() -> None:
    uses = [use for use in statistics().any_annotations if not use.startswith("hooks/")]
    assert statistics().per_thousand_lines(uses) <= 6, uses


def test_imports_stand_at_the_top_of_a_file_or_say_why_not() -> None:
    assert len(statistics().local_imports) <= MOST_LOCAL_IMPORTS, statistics().local_imports
    assert not statistics().unexplained_imports
