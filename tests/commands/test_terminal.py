"""On a terminal `analyze` and `compare` show one screen; nothing of it is wider than the terminal."""

from __future__ import annotations

import gzip
import json
import re
import shutil
from pathlib import Path

import pytest
from _pytest.capture import CaptureIO
from rich.cells import cell_len

from benchmarks import kept_run
from tests.commands.report_cli import Run, run
from tests.conftest import ROOT

FIXTURES = ROOT / "fixtures"
UNPINNED = FIXTURES / "findings" / "h200" / "unpinned"
PINNED = FIXTURES / "findings" / "h200" / "pinned"
ZERO1 = FIXTURES / "runs" / "h200_zero1"
ESCAPE = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]")

Capture = pytest.CaptureFixture[str]


@pytest.fixture(autouse=True)
def screen(monkeypatch: pytest.MonkeyPatch) -> None:
    """Standard output is a terminal of 80 columns and 24 lines."""
    monkeypatch.setattr(CaptureIO, "isatty", lambda _: True)
    monkeypatch.delenv("NO_COLOR", raising=False)
    for name, value in (("TERM", "xterm-256color"), ("COLUMNS", "80"), ("LINES", "24")):
        monkeypatch.setenv(name, value)


def lines_of(answer: Run, width: int = 80) -> list[str]:
    """The lines as a person sees them."""
    lines = ESCAPE.sub("", answer.out).splitlines()
    assert max(map(cell_len, lines)) <= width
    return lines


@pytest.mark.parametrize(
    ("run_dir", "size"), [(UNPINNED, (80, 24)), (ZERO1, (200, 50)), (FIXTURES / "traces" / "single", (60, 24))]
)
def test_the_summary_is_one_screen_with_the_findings_first(
    run_dir: Path, size: tuple[int, int], capsys: Capture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", str(size[0]))
    monkeypatch.setenv("LINES", str(size[1]))
    lines = lines_of(run(capsys, "analyze", run_dir), size[0])
    assert len(lines) < size[1]  # and the prompt
    assert lines[1].startswith(("1. ", "findings: "))
    assert "--format md" in " ".join(line.strip() for line in lines)


def test_the_summary_names_costs_advice_steps_and_shares(capsys: Capture) -> None:
    answer = run(capsys, "analyze", UNPINNED)
    text = "\n".join(lines_of(answer))
    words = " ".join(text.split())
    assert "1. Unpinned copies: 330 ms of 661.7 ms (49.9 % of the loop) A step copies" in words
    assert "Try DataLoader(pin_memory=True)" in words
    assert "34 training steps on 1 rank, counted by optimizer: step time 20.05 ms" in words
    assert text.count("█\n") == 1
    assert re.search(r"^start-up +\d+\.\d% +", text, re.MULTILINE)
    assert "\x1b[1;33m1. Unpinned copies" in answer.out


def test_no_word_of_a_finding_is_cut(capsys: Capture) -> None:
    garbage = kept_run(FIXTURES / "findings" / "busy" / "evaluation_and_garbage")
    words = " ".join(" ".join(lines_of(run(capsys, "analyze", garbage))).split())
    first, second = json.loads(run(capsys, "analyze", garbage, "-f", "json").out)["results"]["findings"]
    for text in (first["cost"], first["evidence"][0]["text"], first["advice"], second["title"], second["cost"]):
        assert text.replace("`", "") in words
    assert "…" not in words
    assert "Wall clock of rank 0" in words


@pytest.mark.parametrize("setting", [("NO_COLOR", "1"), ("TERM", "dumb")])
def test_no_colour_where_none_is_wanted(
    setting: tuple[str, str], capsys: Capture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(*setting)
    assert "\x1b" not in run(capsys, "analyze", UNPINNED).out


def test_a_comparison_is_one_screen_with_the_verdict_first_and_markdown_where_it_is_piped(
    capsys: Capture, monkeypatch: pytest.MonkeyPatch
) -> None:
    words = ("compare", PINNED, UNPINNED, "--anyway")
    lines = lines_of(run(capsys, *words))
    assert (lines[0], len(lines) < 24) == ("Slower", True)
    assert any(line.startswith("Typical step (ms)") for line in lines)
    markdown = run(capsys, *words, "--format", "md").out
    monkeypatch.setattr(CaptureIO, "isatty", lambda _: False)
    assert run(capsys, *words).out == markdown
    assert markdown.startswith("# ")


@pytest.mark.parametrize("width", [80, 50])
def test_a_section_fits_the_width_and_loses_no_number(
    width: int, capsys: Capture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", str(width))
    names = ("steps", "device time", "collectives", "kernels", "overlap")
    words = ("analyze", ZERO1, *(word for name in names for word in ("--section", name)))
    lines = lines_of(run(capsys, *words), width)
    numbers = set(re.findall(r"(?<=[| ])-?\d+\.\d+(?= *\|)", run(capsys, *words, "--format", "md").out))
    assert len(numbers) > 50
    assert numbers <= set("\n".join(lines).split())


def test_a_section_that_is_not_there_is_named_with_those_that_are(capsys: Capture) -> None:
    answer = run(capsys, "analyze", UNPINNED, "--section", "colectives")
    assert answer.code == 2
    assert "has no section 'colectives'" in answer.err
    assert "Findings, Wall clock" in answer.err


def test_control_characters_of_names_never_reach_the_terminal(tmp_path: Path, capsys: Capture) -> None:
    trace = json.loads(gzip.decompress(next((UNPINNED / "traces").glob("*.json.gz")).read_bytes()))
    for event in trace["traceEvents"]:
        if event.get("cat") in ("kernel", "gpu_memcpy"):
            event["name"] = "evil\x1b]0;title\x07\x1b[2J\x9b31m\r\n\u202egnp"
    (tmp_path / "rank0.json").write_text(json.dumps(trace))
    for options in ((), ("--section", "kernels")):
        answer = run(capsys, "analyze", tmp_path / "rank0.json", *options)
        assert answer.code == 0
        assert not re.search("[\x00-\x08\x0b-\x1f\x7f-\x9f\u202e]", ESCAPE.sub("", answer.out))
        assert "\x1b[2J" not in answer.out


def test_a_damaged_run_says_so_on_the_screen(tmp_path: Path, capsys: Capture) -> None:
    shutil.copytree(UNPINNED, tmp_path / "run")
    for trace in (tmp_path / "run" / "traces").rglob("*.json.gz"):
        trace.write_bytes(trace.read_bytes()[:-2000])
    answer = run(capsys, "analyze", tmp_path / "run")
    assert answer.code == 4
    assert any(line.startswith("Warning") for line in lines_of(answer))


def test_of_many_runs_a_screen_shows_as_many_as_fit(tmp_path: Path, capsys: Capture) -> None:
    for number in range(26):
        shutil.copytree(UNPINNED, tmp_path / f"run{number:02}", ignore=shutil.ignore_patterns("traces"))
    lines = lines_of(run(capsys, "analyze", tmp_path))
    assert len(lines) < 24
    assert any("more line" in line for line in lines)
