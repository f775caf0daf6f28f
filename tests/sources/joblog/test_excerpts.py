"""Lines of logs that others published, of every framework, against what a hand calculation makes of them."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from benchmarks.log_excerpts import EXCERPTS, FOREIGN, Excerpt, differences, load
from perfscope.analyzers.logs.summary import summarize_log
from perfscope.sources.joblog import read_log
from perfscope.sources.joblog.registry import FORMATS

PUBLISHED = load(EXCERPTS)
OF_OTHERS = load(FOREIGN)
#: One of each framework, for what reads an excerpt many times.
ONE_OF_EACH = list({str(excerpt.expect["framework"]): excerpt for excerpt in PUBLISHED}.values())
#: Formats whose logs bear the name of one of several programs.
NAMED = {"megatron": "megatron-lm", "hf-trainer-files": "llama-factory"}


def name(excerpt: Excerpt) -> str:
    return excerpt.path.stem


@pytest.mark.parametrize("excerpt", PUBLISHED, ids=name)
def test_every_figure_is_what_a_hand_calculation_gives(excerpt: Excerpt) -> None:
    summary = excerpt.read()
    assert differences(excerpt, summary) == []
    assert all(source.wall_ns is None or source.wall_ns > 0 for source in summary.log.other_sources)


def test_every_framework_has_an_excerpt() -> None:
    frameworks = {excerpt.expect["framework"] for excerpt in PUBLISHED}
    claimed = {log_format.framework for log_format in FORMATS if log_format.framework}
    assert {NAMED.get(framework, framework) for framework in claimed} <= frameworks


@pytest.mark.parametrize("excerpt", OF_OTHERS, ids=name)
def test_lines_of_another_program_are_not_taken(excerpt: Excerpt) -> None:
    summary = excerpt.read()
    assert (summary.status, summary.framework, summary.times.median_s) == ("unrecognised", None, None)


@pytest.mark.parametrize("excerpt", ONE_OF_EACH, ids=name)
def test_the_same_lines_with_other_words_are_not_taken(excerpt: Excerpt, tmp_path: Path) -> None:
    path = tmp_path / "run.log"
    text = excerpt.path.read_text()
    path.write_text(re.sub(r"[a-z]{3,}", lambda word: word[0][::-1] + "q", text))
    summary = summarize_log(read_log(path))
    assert (summary.times.median_s, summary.samples_per_s) == (None, None)


@pytest.mark.parametrize("excerpt", ONE_OF_EACH, ids=name)
def test_each_word_that_is_changed_leaves_the_figure_or_takes_it_away(excerpt: Excerpt, tmp_path: Path) -> None:
    """No single changed word makes a step time of something else: the same one, none, or that of another source."""
    text, path = excerpt.path.read_text(), tmp_path / "run.log"
    truth = excerpt.read().times.median_s
    by_source = {excerpt.read().log.time_source: truth}
    for word in sorted(set(re.findall(r"[A-Za-z_]{3,}", text))):
        path.write_text(text.replace(word, word + "q"))
        summary = summarize_log(read_log(path))
        source, median_s = summary.log.time_source, summary.times.median_s
        if median_s is not None and source in by_source and summary.status == "ok":
            assert median_s == pytest.approx(by_source[source], rel=1e-6) or summary.times.used_records == 1, word


@pytest.mark.parametrize("excerpt", PUBLISHED, ids=name)
def test_the_labels_of_launchers_change_nothing(excerpt: Excerpt, tmp_path: Path) -> None:
    path = tmp_path / "run.log"
    lines = excerpt.path.read_text().splitlines(keepends=True)
    path.write_text("".join("[1,0]<stdout>:" + line for line in lines))
    if not any(line.startswith(" " * 4) for line in lines):  # a record over several lines, which a label interrupts
        assert differences(excerpt, summarize_log(read_log(path))) == []


@pytest.mark.parametrize("excerpt", ONE_OF_EACH, ids=name)
def test_half_a_log_and_a_torn_line_raise_nothing(excerpt: Excerpt, tmp_path: Path) -> None:
    path, text = tmp_path / "run.log", excerpt.path.read_bytes()
    for cut in range(0, len(text), max(len(text) // 40, 1)):
        path.write_bytes(text[:cut] + b"\xff\xfe\n" + text[cut // 2 :])
        summarize_log(read_log(path))
