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
SIZES = [(80, 24), (200, 50)]
ESCAPE = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]")


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("run_dir", [UNPINNED, ZERO1, FIXTURES / "traces" / "single"], ids=lambda path: path.name)
def test_the_summary_is_one_screen_with_the_findings_first(run_dir: Path, size: tuple[int, int]) -> None:
    seen = on_terminal("analyze", run_dir, size=size, cwd=ROOT)
    assert seen.code == 0
    assert len(seen.lines) < size[1]  # and the prompt
    assert seen.widest <= size[0]
    assert seen.lines[1].startswith("finding")
    assert "--format md" in " ".join(line.strip() for line in seen.lines)


def test_the_summary_names_costs_advice_steps_and_shares() -> None:
    text = "\n".join(on_terminal("analyze", UNPINNED, cwd=ROOT).lines)
    assert "finding 1: unpinned copies, 9.999 ms (50 % of a step): Try DataLoader(pin_memory=True)" in " ".join(
        text.split()
    )
    assert "34 training steps on 1 rank, counted by optimizer: step time 20.05 ms" in " ".join(text.split())
    assert re.search(r"^rank 0  █+ +exposed copies \d+% compute \d+% idle \d+%", text, re.MULTILINE)


@pytest.mark.parametrize("size", SIZES[:1])
def test_a_comparison_is_one_screen_with_the_verdict_first(size: tuple[int, int]) -> None:
    seen = on_terminal("compare", PINNED, UNPINNED, "--anyway", size=size, cwd=ROOT)
    assert seen.code == 0
    assert len(seen.lines) < size[1]
    assert seen.widest <= size[0]
    assert seen.lines[0] == "Slower"
    assert any(line.startswith("Step time (ms)") for line in seen.lines)


@pytest.mark.parametrize("words", [["analyze", UNPINNED], ["compare", PINNED, UNPINNED, "--anyway"]])
def test_what_is_piped_is_markdown_as_it_was(words: list[str | Path]) -> None:
    piped = perfscope(*words, cwd=ROOT).stdout
    assert piped == perfscope(*words, "--format", "md", cwd=ROOT).stdout
    assert piped.startswith("# ")
    seen = on_terminal("--quiet", *words, "--format", "md", cwd=ROOT)
    assert seen.written == piped
    assert "\x1b" not in piped


class TestEnvironment:
    def test_colours_are_used(self) -> None:
        assert "\x1b[1;33mfinding 1: unpinned copies" in on_terminal("--quiet", "analyze", UNPINNED, cwd=ROOT).written

    @pytest.mark.parametrize("setting", ["NO_COLOR=1", "TERM=dumb"])
    def test_no_colour_where_none_is_wanted(self, setting: str) -> None:
        seen = on_terminal("--quiet", "analyze", UNPINNED, cwd=ROOT, setting=setting)
        assert "\x1b" not in seen.written
        assert seen.lines[1].startswith("finding 1")

    def test_columns_is_honoured(self) -> None:
        assert on_terminal("--quiet", "analyze", ZERO1, size=(200, 50), cwd=ROOT, setting="COLUMNS=60").widest <= 60


class TestSections:
    @pytest.mark.parametrize("size", [(80, 24), (50, 24)])
    def test_a_section_fits_the_width_and_loses_no_number(self, size: tuple[int, int]) -> None:
        names = ("steps", "device time", "collectives", "kernels", "overlap")
        options = [word for name in names for word in ("--section", name)]
        seen = on_terminal("--quiet", "analyze", ZERO1, *options, size=size, cwd=ROOT)
        assert seen.code == 0
        assert seen.widest <= size[0]
        cells = {cell.strip() for line in perfscope("analyze", ZERO1, *options, cwd=ROOT).stdout.splitlines()
                 if line.startswith("|") for cell in line.strip("|").split("|")}  # fmt: skip
        numbers = {cell for cell in cells if re.fullmatch(r"-?\d+\.\d+", cell)}
        assert len(numbers) > 50
        assert numbers <= set(re.split(r"\s+", "\n".join(seen.lines)))

    def test_a_section_that_is_not_there_is_named_with_those_that_are(self) -> None:
        ended = perfscope("analyze", UNPINNED, "--section", "colectives", cwd=ROOT)
        assert ended.code == 2
        assert "has no section 'colectives'" in ended.stderr
        assert "Findings, Wall clock" in ended.stderr


class TestBadInput:
    def test_control_characters_of_names_never_reach_the_terminal(self, tmp_path: Path) -> None:
        hostile = "evil\x1b]0;title\x07\x1b[2J\x9b31m\r\n\u202egnp"
        trace = json.loads(gzip.decompress(next((UNPINNED / "traces").glob("*.json.gz")).read_bytes()))
        for event in trace["traceEvents"]:
            if event.get("cat") in ("kernel", "gpu_memcpy"):
                event["name"] = hostile
        (tmp_path / "rank0.json").write_text(json.dumps(trace))
        for options in ([], ["--section", "kernels"], ["--only", "kernels,idle"]):
            seen = on_terminal("--quiet", "analyze", tmp_path / "rank0.json", *options, cwd=tmp_path)
            assert seen.code == 0
            plain = ESCAPE.sub("", seen.written)
            assert not re.search("[\x00-\x08\x0b-\x1f\x7f-\x9f\u202e]", plain)
            assert "\x1b[2J" not in seen.written

    def test_a_damaged_run_says_so_on_the_screen(self, tmp_path: Path) -> None:
        shutil.copytree(UNPINNED, tmp_path / "run")
        for trace in (tmp_path / "run" / "traces").rglob("*.json.gz"):
            trace.write_bytes(trace.read_bytes()[:-2000])
        seen = on_terminal("analyze", "run", cwd=tmp_path)
        assert seen.code == 4
        assert len(seen.lines) < 24
        assert any(line.startswith("Warning") for line in seen.lines)
        warnings = on_terminal("analyze", "run", "--section", "warnings", cwd=tmp_path)
        assert any(line.startswith("- ") for line in warnings.lines)

    def test_many_ranks_and_many_runs(self, tmp_path: Path) -> None:
        for number in range(26):
            shutil.copytree(UNPINNED, tmp_path / "runs" / f"run{number:02}", ignore=shutil.ignore_patterns("traces"))
        seen = on_terminal("analyze", "runs", cwd=tmp_path)
        assert len(seen.lines) < 24
        assert any("more line" in line for line in seen.lines)
