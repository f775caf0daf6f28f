"""Claims about ``perfscope export``: what it writes, what it refuses, and that it shows what there is of bad input."""

from __future__ import annotations

import json
import re
import shutil
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from benchmarks.synthetic_runs import SyntheticRun, write_run
from perfscope.cli import app
from tests.conftest import ROOT

RUNS = ROOT / "fixtures" / "runs"


def absent(answer: dict[str, Any]) -> dict[str, str]:
    return {part["part"]: part["absent"] for part in answer["parts"] if part["absent"]}


def write(*words: str | Path, code: int = 0) -> tuple[dict[str, Any], str]:
    """The answer of the command, and the page."""
    result = CliRunner().invoke(app, ["export", *map(str, words), "--format", "json"])
    assert result.exit_code == code, result.output
    answer: dict[str, Any] = json.loads(result.stdout)
    return answer, Path(answer["path"]).read_text()


def test_it_says_what_it_wrote_and_what_is_absent(tmp_path: Path) -> None:
    target = tmp_path / "page.html"
    answer, html = write(RUNS / "cpu_trainer", "-o", target)
    assert answer["bytes"] == target.stat().st_size
    assert html.startswith("<!doctype html>")
    assert {"timeline", "gpus"} <= set(absent(answer))
    assert "checkpoints" not in absent(answer)
    assert list(tmp_path.iterdir()) == [target]


def test_a_run_without_a_step(tmp_path: Path) -> None:
    run = tmp_path / "run"
    run.mkdir()
    (run / "run.json").write_text('{"schema": "perfscope/run/1", "command": ["python", "train.py"]}\n')
    answer, html = write(run, "-o", tmp_path / "page.html", code=4)
    assert {"findings", "steps", "breakdown", "timeline", "memory"} <= set(absent(answer))
    assert "Parts of this run are missing or damaged" in html


@pytest.mark.parametrize(
    ("shape", "shown"),
    [
        (SyntheticRun(ranks=1, steps=1, profiled=0), {"steps"}),
        (SyntheticRun(ranks=1), {"steps", "breakdown", "timeline", "gpus", "kernels", "memory"}),
        (SyntheticRun(ranks=3), {"overlap", "collectives", "stragglers"}),
        (SyntheticRun(ranks=2, profiled=0), {"steps", "gpus", "memory"}),
    ],
    ids=["one step", "one rank", "three ranks", "no traces"],
)
def test_small_runs(tmp_path: Path, shape: SyntheticRun, shown: set[str]) -> None:
    answer, html = write(write_run(tmp_path / "run", shape), "-o", tmp_path / "page.html")
    assert not shown & set(absent(answer))
    assert "NaN" not in html
    assert ">inf" not in html


def test_a_run_on_processors_shows_each_step_at_its_height_and_the_late_rank(tmp_path: Path) -> None:
    answer, html = write(ROOT / "fixtures" / "stragglers" / "ddp.sleep", "-o", tmp_path / "page.html")
    figure = html.partition('id="steps-0"')[2].partition("</figure>")[0]
    dots = re.findall(r'cy="([\d.]+)" r="3"><title>step (\d+)(, with a pause)?: ([\d.]+) ms', figure)
    floor = float(re.findall(r'class="axis" d="M[\d.]+ ([\d.]+)H', figure)[0])
    heights = {(step, pause): (floor - float(y)) / float(ms) for y, step, pause, ms in dots}
    assert len(heights) == 32 + 2
    assert max(heights.values()) == pytest.approx(min(heights.values()), rel=0.01)
    assert {step for step, pause in heights if pause} == {"18", "19"}
    assert "Rank 1 is late in most steps: its host code slept or waited outside of collectives." in html
    assert html.count("Nothing to show of: ") == 1
    assert {"timeline", "memory"} <= set(absent(answer))


def test_recorded_stacks_are_a_flame_graph(tmp_path: Path) -> None:
    trace = ROOT / "fixtures" / "traces" / "loops" / "sleeping.pt.trace.json.gz"
    _, html = write(trace, "-o", tmp_path / "page.html")
    figure = html.partition('id="stacks-0"')[2].partition("</figure>")[0]
    places = {
        name: (float(x), float(width), float(y))
        for x, y, width, name in re.findall(
            r'x="([\d.]+)" y="([\d.]+)" width="([\d.]+)" [^>]*><title>(\S+ \S+): [\d.,]+ ms, [\d.]+ %<', figure
        )
    }
    caller, callee = places["loops.py(23): sleeping"], places["built-in sleep"]
    assert callee[2] > caller[2], "below its caller"
    assert caller[0] <= callee[0]
    assert callee[0] + callee[1] <= caller[0] + caller[1] + 0.1
    assert callee[1] > 0.8 * 800


def test_ten_thousand_steps_are_drawn_in_few_points_and_said_so(tmp_path: Path) -> None:
    run = write_run(tmp_path / "run", SyntheticRun(ranks=1, steps=10_000, profiled=0))
    _, html = write(run, "-o", tmp_path / "page.html")
    assert len(html) < 1_000_000
    assert "fastest to slowest of neighbouring steps" in html
    assert re.search(r"9,?488 more rows", html)
    assert "garbage collection: step 10000" in html


def test_a_damaged_run_says_so_at_the_top(tmp_path: Path) -> None:
    run = tmp_path / "run"
    shutil.copytree(RUNS / "h200_zero2", run)
    trace = next((run / "traces").glob("*.gz"))
    trace.write_bytes(trace.read_bytes()[: trace.stat().st_size // 2])
    answer, html = write(run, "-o", tmp_path / "page.html", code=4)
    damage = html.index("Parts of this run are missing or damaged")
    assert damage < html.index('id="findings"')
    assert trace.name in html[damage : damage + 2000]
    assert not {"breakdown", "timeline"} & set(absent(answer))


def test_of_very_many_ranks_the_page_says_which_it_shows(tmp_path: Path) -> None:
    run = write_run(tmp_path / "run", SyntheticRun(ranks=300, steps=6, profiled=1, layers=1))
    _, html = write(run, "-o", tmp_path / "page.html")
    assert "The strip at the top is of all 300 devices. Below it are " in html
    assert "64 of 300 are shown: the 16 with the largest idle time" in html
    data = json.loads(html.partition('id="timeline-data">')[2].partition("</script>")[0])
    assert len(data["rows"]) == len(data["why"]) <= 128
    assert "rank 299" in [row["name"] for row in data["rows"]], "the straggler is among them"
    assert len(html) < 1_500_000


@pytest.mark.parametrize(
    ("words", "problem"),
    [
        (("-o", "page.pdf"), "does not end in .html"),
        (("-o", "missing/page.html"), "is no folder"),
        (("-o", "run/run.json/page.html"), "is no folder"),
        (("--as", "trace", "-o", "page.html"), "does not end in .json.gz"),
        (("--ranks", "0"), "--ranks and --steps are of a trace"),
        ((str(RUNS / "h200_zero1"), str(RUNS / "h200_zero3")), "a page shows one run; these are 2"),
    ],
)
def test_what_cannot_be_written_is_said_before_anything_is_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, words: tuple[str, ...], problem: str
) -> None:
    run = tmp_path / "run"
    run.mkdir()
    (run / "run.json").write_text("{}")
    monkeypatch.chdir(tmp_path)
    result = CliRunner().invoke(app, ["export", *([] if words[0].startswith("/") else ["nothing-here"]), *words])
    assert result.exit_code != 0
    assert problem in str(result.exception)
    assert [path.name for path in tmp_path.iterdir()] == ["run"]


def test_metrics_of_a_run_are_written_for_prometheus(tmp_path: Path) -> None:
    result = CliRunner().invoke(app, ["export", str(RUNS / "h200_zero1"), "-o", str(tmp_path / "run.prom")])
    assert result.exit_code == 0, result.output
    text = (tmp_path / "run.prom").read_text()
    assert "perfscope_steps_total" in text
    assert text.endswith("# EOF\n")
