"""Files that are no log, logs of two jobs, logs in other languages, and folders of very many files."""

from __future__ import annotations

import gzip
import os
import pickle
import re
import tarfile
import zipfile
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path

import numpy as np
import pytest

from benchmarks.log_excerpts import EXCERPTS, load
from perfscope.analyzers.logs.summary import summarize_log
from perfscope.errors import SourceError
from perfscope.sources.joblog import read_log
from perfscope.sources.joblog.log_format import MOST_OF_LINE
from perfscope.sources.joblog.registry import FORMATS
from tests.conftest import ROOT
from tests.ratios import assert_ratio
from tests.sources.joblog.lines import megatron, seconds

NOISE = np.random.default_rng(1).bytes(200_000)
BINARIES = {
    "picture.png": b"\x89PNG\r\n\x1a\n\x00\x00\x00\rIHDR" + NOISE,
    "weights.pt": b"PK\x03\x04\x00\x00\x08\x08" + NOISE,
    "weights.pkl": pickle.dumps({"weights": NOISE}),
    "holes": bytes(300_000),
    "noise.gz": gzip.compress(NOISE),
}


@pytest.mark.parametrize("name", BINARIES)
def test_a_binary_file_is_refused_in_one_line(name: str, tmp_path: Path) -> None:
    path = tmp_path / name
    path.write_bytes(BINARIES[name])
    with pytest.raises(SourceError, match=r"binary|damaged"):
        read_log(path)


@pytest.mark.parametrize("name", ["logs.tar", "logs.tar.gz", "logs.zip"])
def test_an_archive_of_logs_is_not_read_as_one_job(name: str, tmp_path: Path) -> None:
    for number in (1, 2):
        (tmp_path / f"run{number}.log").write_text("".join(megatron(n, 1000.0 * number) for n in range(1, 40)))
    path = tmp_path / name
    if name.endswith("zip"):
        with zipfile.ZipFile(path, "w") as archive:
            archive.write(tmp_path / "run1.log")
    else:
        with tarfile.open(path, "w:gz" if name.endswith("gz") else "w") as tar:
            tar.add(tmp_path / "run1.log")
            tar.add(tmp_path / "run2.log")
    with pytest.raises(SourceError, match="is an archive"):
        read_log(path)


def test_a_log_that_inflates_to_a_bomb_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "bomb.log.gz"
    path.write_bytes(gzip.compress(b"\n" * (32 << 20)))
    with pytest.raises(SourceError, match="more than 200 times its size"):
        read_log(path)


def test_a_pipe_is_read_to_its_end(tmp_path: Path) -> None:
    path = tmp_path / "pipe.log"
    os.mkfifo(path)
    lines = "".join(megatron(n, 1000.0) for n in range(1, 400)).encode()
    with ThreadPoolExecutor(1) as pool:
        written = pool.submit(path.write_bytes, lines)
        assert len(seconds(read_log(path))) == 399
        assert written.result() == len(lines)


@pytest.mark.parametrize(
    "alter",
    [
        lambda line: "(Trainer pid=1234, ip=10.0.0.1) " + line,
        lambda line: "warnings.py:12: UserWarning: 3.5\n" + line,
        lambda line: f'{{"log":"{line[:-1]}\\n","stream":"stdout"}}\n',
        lambda line: "^[[32m" + line.rstrip("\n") + "^[[0m\n",
    ],
    ids=["ray", "warnings", "docker", "colours of cat -v"],
)
@pytest.mark.parametrize("name", ["olmo", "fairseq-tpu"])
def test_what_stands_around_lines_makes_no_other_figure(
    alter: Callable[[str], str], name: str, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    published, path = ROOT / "fixtures" / "published_logs" / f"{name}.log", tmp_path / "run.log"
    path.write_text("".join(alter(line) for line in published.read_text().splitlines(keepends=True)))
    figure, truth = (summarize_log(read_log(log)).times.median_s for log in (path, published))
    is_rewritten = any(name in request.node.callspec.id for name in ("docker", "colours"))
    assert figure == truth or (figure is None and name == "olmo" and is_rewritten)


@pytest.mark.parametrize("encoding", ["utf-8", "gbk", "utf-16"])
def test_messages_in_other_languages_change_nothing(encoding: str, tmp_path: Path) -> None:
    words = "训练开始第一轮" if encoding == "gbk" else "훈련 학습 тест 训练"
    path = tmp_path / "run.log"
    text = "".join(f"{words} {n}\n" + megatron(n, 1000.0) for n in range(1, 200))
    path.write_bytes(text.encode(encoding))
    summary = summarize_log(read_log(path))
    assert (summary.framework, summary.times.median_s, summary.iterations) == ("megatron-lm", 1.0, 199)


NUMBER = re.compile(rb"\d+(?:[.,]\d+)*")
#: Python refuses to read integers of over 4,300 digits.
ODD = (b"9" * 5000, b"9" * 400, b"1e400", b"1.2.3", b".", b",", b"-", b"0", b"")
PATHS = {excerpt.expect["framework"]: excerpt.path for excerpt in load(EXCERPTS)}
MOST_NUMBERS = 30
LONGEST = 3000


def with_one_odd_number(text: bytes, odd: bytes) -> list[bytes]:
    lines = dict.fromkeys(re.sub(rb"\d", b"5", line) for line in text.split(b"\n") if len(line) < LONGEST)
    numbers = [(line, number.span()) for line in lines for number in [*NUMBER.finditer(line)][:MOST_NUMBERS]]
    return [line[:begin] + odd + line[end:] for line, (begin, end) in numbers]


@pytest.mark.parametrize("path", PATHS.values(), ids=PATHS)
def test_no_number_is_too_odd(path: Path, tmp_path: Path) -> None:
    text, log = path.read_bytes(), tmp_path / "run.log"
    for odd in ODD:
        log.write_bytes(b"\n".join((NUMBER.sub(odd, text), *with_one_odd_number(text, odd))))
        read_log(log)


def test_no_word_of_a_rule_has_too_odd_a_number_behind_it(tmp_path: Path) -> None:
    log = tmp_path / "run.log"
    anchors = [rule.anchor for log_format in FORMATS for rule in log_format.rules]
    for odd in ODD:
        log.write_bytes(b"\n".join(anchor + between + odd for anchor in anchors for between in (b"", b": ", b" = ")))
        read_log(log)


TOTAL = 60_000
LENGTHS = (5_000, 15_000)
#: Half records are read as fast as whole ones; at the square of a line's length they took a hundred times as long.
MOST_OF_RECORDS = 12
#: Texts before, within and behind a long run of which two parts of a pattern may be.
OVERLAPPING = (
    ("", "1", "MiB / x"),
    ("step: 7 loss: x", "1", "  tps:"),
    ("steps: 7 loss: x", "1", " iter time (s):"),
    ("number of parameters", "1", "  Billion"),
    ("", "iteration 7/7 |xglobal_step: 7 xtrain_step_timing in s:", ""),
    ("", "1", " grad accum steps * "),
    ("  a ..: (7, 7) ", " ", " ..: "),
)
NANOGPT_AND_MEGATRON = (
    "iter %d: loss 4.1200, time 250.10ms, mfu 12.00%% ",
    " iteration %8d/ 100 | consumed samples: 8 | elapsed time per iteration (ms): 250.1 | loss scale: 1.0 | ",
)


def halves(text: str) -> list[str]:
    line = max(text.splitlines(), key=len)
    cuts = [match.end() for match in re.finditer(r"[\s|,:=]", line)]
    places = [cuts[len(cuts) * part // 5] for part in (1, 2, 3, 4)]
    return [*(line[:place] for place in places), *(line[place:] for place in places[1:3])]


@pytest.mark.parametrize("path", PATHS.values(), ids=lambda path: path.stem)
def test_a_line_of_half_records_takes_no_longer_than_records(path: Path, tmp_path: Path) -> None:
    text = path.read_text()
    log, records = tmp_path / "run.log", tmp_path / "records.log"
    records.write_text(text * (TOTAL // len(text) + 1))
    for part in halves(text):
        for length in LENGTHS:
            line = (part * (length // len(part) + 1))[:length] + "\n"
            log.write_text(line * (TOTAL // length))
            assert_ratio(partial(read_log, log), partial(read_log, records), MOST_OF_RECORDS)


def test_a_rule_that_reaches_beyond_its_line_is_tried_at_one_place() -> None:
    """A search in each of many lines, up to where the rule reaches, would cost the square of the text."""
    rules = [rule for log_format in FORMATS for rule in log_format.rules if rule.spans_lines]
    assert rules
    assert not [rule.anchor for rule in rules if not rule.begin]


@pytest.mark.parametrize("records", [1, 2, MOST_OF_LINE, MOST_OF_LINE + 1, 40])
@pytest.mark.parametrize("record", NANOGPT_AND_MEGATRON, ids=["nanogpt", "megatron"])
def test_of_more_records_than_ranks_print_on_a_line_the_first_is_read(
    record: str, records: int, tmp_path: Path
) -> None:
    log = tmp_path / "run.log"
    lines = ["".join(record % (line * records + place) for place in range(1, records + 1)) for line in range(3)]
    log.write_text("\n".join(lines) + "\n")
    numbers = read_log(log).iterations.iteration.compressed().tolist()
    read = range(1, records + 1) if records <= MOST_OF_LINE else (1,)
    expected = [line * records + place for line in range(3) for place in read]
    assert [number - numbers[0] + 1 for number in numbers] == expected


@pytest.mark.parametrize(("begin", "run", "end"), OVERLAPPING, ids=lambda text: text[:12].strip() or "-")
def test_a_long_run_is_no_slower_than_other_text(begin: str, run: str, end: str, tmp_path: Path) -> None:
    """Two parts of a pattern that can share a run of the same text in many ways took the square of its length."""
    log, other = tmp_path / "run.log", tmp_path / "other.log"
    line = begin + run * (1500 // len(run)) + end + "\n"
    log.write_text(line * (TOTAL // len(line)))
    other.write_text("".join(f"{number:x}" for number in range(TOTAL // 4)) + "\n")
    assert_ratio(partial(read_log, log), partial(read_log, other), MOST_OF_RECORDS)


def test_a_match_fits_into_the_span_of_its_rule() -> None:
    rules = [rule for log_format in FORMATS for rule in log_format.rules if rule.span]
    assert rules
    for rule in rules:
        longest = re._parser.parse(rule.regex.pattern.decode("latin-1")).getwidth()[1]  # type: ignore[attr-defined]
        assert rule.span is not None
        assert longest - len(rule.anchor) <= sum(rule.span), rule.anchor
