"""On a terminal `analyze` and `compare` show one screen; nothing of it is wider than the terminal."""

from __future__ import annotations

import gzip
import json
import re
import shutil
from pathlib import Path

import pytest

from tests.commands.terminals import on_terminal
from tests.conftest import ROOT, perfscope

FIXTURES = ROOT / "fixtures"
UNPINNED = FIXTURES / "findings" / "h200" / "unpinned"
PINNED = FIXTURES / "findings" / "h200" / "pinned"
ZERO1 = FIXTURES / "runs" / "h200_zero1"
ESCAPE = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]")


@pytest.mark.parametrize(
    ("run_dir", "size"), [(UNPINNED, (80, 24)), (ZERO1, (200, 50)), (FIXTURES / "traces" / "single", (80, 24))]
)
def test_the_summary_is_one_screen_with_the_findings_first(run_dir: Path, size: tuple[int, int]) -> None:
    seen = on_terminal("analyze", run_dir, size=size, cwd=ROOT)
    assert seen.code == 0
    assert len(seen.lines) < size[1]  # and the prompt
    assert seen.widest <= size[0]
    assert seen.lines[1].startswith("finding")
    assert "--format md" in " ".join(line.strip() for line in seen.lines)


def test_the_summary_names_costs_advice_steps_and_shares() -> None:
    text = "\n".join(on_terminal("analyze", UNPINNED, cwd=ROOT).lines)
    words = " ".join(text.split())
    assert "finding 1: unpinned copies, 9.999 ms (50 % of a step): Try DataLoader(pin_memory=True)" in words
    assert "34 training steps on 1 rank, counted by optimizer: step time 20.05 ms" in words
    assert re.search(r"^rank 0  █+ +exposed copies \d+% compute \d+% idle \d+%", text, re.MULTILINE)


def test_a_comparison_is_one_screen_with_the_verdict_first_and_markdown_where_it_is_piped() -> None:
    words = ("compare", PINNED, UNPINNED, "--anyway")
    seen = on_terminal(*words, cwd=ROOT)
    assert (seen.code, seen.lines[0]) == (0, "Slower")
    assert len(seen.lines) < 24
    assert seen.widest <= 80
    assert any(line.startswith("Step time (ms)") for line in seen.lines)
    piped = perfscope(*words, cwd=ROOT).stdout
    assert piped.startswith("# ")
    assert on_terminal("--quiet", *words, "--format", "md", cwd=ROOT).written == piped


def test_the_environment_chooses_colours_and_the_width() -> None:
    words = ("--quiet", "analyze", UNPINNED)
    assert "\x1b[1;33mfinding 1: unpinned copies" in on_terminal(*words, cwd=ROOT).written
    for setting in ("NO_COLOR=1", "TERM=dumb"):
        assert "\x1b" not in on_terminal(*words, cwd=ROOT, setting=setting).written
    assert on_terminal(*words, size=(200, 50), cwd=ROOT, setting="COLUMNS=60").widest <= 60


@pytest.mark.parametrize("size", [(80, 24), (50, 24)])
def test_a_section_fits_the_width_and_loses_no_number(size: tuple[int, int]) -> None:
    names = ("steps", "device time", "collectives", "kernels", "overlap")
    options = [word for name in names for word in ("--section", name)]
    seen = on_terminal("--quiet", "analyze", ZERO1, *options, size=size, cwd=ROOT)
    assert seen.code == 0
    assert seen.widest <= size[0]
    printed = perfscope("analyze", ZERO1, *options, cwd=ROOT).stdout
    numbers = set(re.findall(r"(?<=[| ])-?\d+\.\d+(?= *\|)", printed))
    assert len(numbers) > 50
    assert numbers <= set(re.split(r"\s+", "\n".join(seen.lines)))


def test_a_section_that_is_not_there_is_named_with_those_that_are() -> None:
    ended = perfscope("analyze", UNPINNED, "--section", "colectives", cwd=ROOT)
    assert ended.code == 2
    assert "has no section 'colectives'" in ended.stderr
    assert "Findings, Wall clock" in ended.stderr


def test_control_characters_of_names_never_reach_the_terminal(tmp_path: Path) -> None:
    hostile = "evil\x1b]0;title\x07\x1b[2J\x9b31m\r\n\u202egnp"
    trace = json.loads(gzip.decompress(next((UNPINNED / "traces").glob("*.json.gz")).read_bytes()))
    for event in trace["traceEvents"]:
        if event.get("cat") in ("kernel", "gpu_memcpy"):
            event["name"] = hostile
    (tmp_path / "rank0.json").write_text(json.dumps(trace))
    for options in ([], ["--section", "kernels"]):
        seen = on_terminal("--quiet", "analyze", tmp_path / "rank0.json", *options, cwd=tmp_path)
        assert seen.code == 0
        assert not re.search("[\x00-\x08\x0b-\x1f\x7f-\x9f\u202e]", ESCAPE.sub("", seen.written))
        assert "\x1b[2J" not in seen.written


def test_a_damaged_run_says_so_on_the_screen(tmp_path: Path) -> None:
    shutil.copytree(UNPINNED, tmp_path / "run")
    for trace in (tmp_path / "run" / "traces").rglob("*.json.gz"):
        trace.write_bytes(trace.read_bytes()[:-2000])
    seen = on_terminal("analyze", "run", cwd=tmp_path)
    assert seen.code == 4
    assert len(seen.lines) < 24
    assert any(line.startswith("Warning") for line in seen.lines)


def test_of_many_runs_a_screen_shows_as_many_as_fit(tmp_path: Path) -> None:
    for number in range(26):
        shutil.copytree(UNPINNED, tmp_path / "runs" / f"run{number:02}", ignore=shutil.ignore_patterns("traces"))
    seen = on_terminal("analyze", "runs", cwd=tmp_path)
    assert len(seen.lines) < 24
    assert any("more line" in line for line in seen.lines)
