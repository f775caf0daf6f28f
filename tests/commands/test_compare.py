"""``perfscope compare``: what it takes, what it refuses, its JSON, its limits, and how it ends."""

from __future__ import annotations

import json
import re
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.commands.report_cli import run
from tests.conftest import ROOT

RUN = ROOT / "fixtures" / "light" / "gpu_bound"
OTHER = ROOT / "fixtures" / "light" / "ddp_gpu_bound"

Capture = pytest.CaptureFixture[str]


def copied(source: Path, target: Path, edit: Callable[[dict[str, Any]], object] | None = None) -> Path:
    """A run without its traces, each of whose steps is edited."""
    shutil.copytree(source, target, ignore=shutil.ignore_patterns("traces"))
    for file in target.glob("ranks/*/steps.jsonl"):
        steps = [json.loads(line) for line in file.read_text().splitlines()]
        for step in steps:
            if edit is not None:
                edit(step)
        file.write_text("".join(f"{json.dumps(step)}\n" for step in steps))
    for file in target.glob("ranks/*/events.jsonl"):
        lines = [line for line in file.read_text().splitlines() if '"kind":"window"' not in line]
        file.write_text("".join(f"{line}\n" for line in lines))
    return target


def set_time(ms: float) -> Callable[[dict[str, Any]], object]:
    """Steps of about so many milliseconds, which vary by a thousandth."""

    ends_ns = [10**12]

    def edit(step: dict[str, Any]) -> None:
        if "wall_ns" in step:
            step["wall_ns"] = round(ms * 1_000_000 * (1 + (step["step"] * 7919 % 21 - 10) / 10_000))
        ends_ns.append(ends_ns[-1] + step.get("wall_ns", 0))
        step |= {"end_ns": ends_ns[-1], "hook_ns": 0}

    return edit


@pytest.fixture
def pair(tmp_path: Path) -> tuple[Path, Path]:
    """Two runs, the second 5 % slower."""
    return copied(RUN, tmp_path / "a", set_time(20.0)), copied(RUN, tmp_path / "b", set_time(21.0))


def test_the_json_has_the_schema_and_the_keys_that_are_promised(pair: tuple[Path, Path], capsys: Capture) -> None:
    answer = run(capsys, "compare", *pair, "--format", "json")
    document = answer.data
    assert document["schema"] == "perfscope/comparison/1"
    assert document["verdict"] == "slower"
    step_time = document["step_time"]
    assert (step_time["a_s"], step_time["b_s"]) == (pytest.approx(0.020, rel=1e-3), pytest.approx(0.021, rel=1e-3))
    assert step_time["change"] == pytest.approx(0.05, rel=0.01)
    low, high = step_time["interval"]
    assert 0.03 < low < 0.05 < high < 0.07
    assert document["throughput"]["change"] == pytest.approx(1 / 1.05 - 1, rel=0.01)
    assert document["tflops"]["change"] == pytest.approx(1 / 1.05 - 1, rel=0.01)
    assert document["memory"]["interval"] == [0, 0]
    assert document["energy"] is None  # these steps are shorter than they were: there are pauses between them
    assert document["terms"] == []
    assert document["unexplained_us"] is None
    assert document["missing"]["budget"].endswith("the run contains no trace")


def test_a_run_against_itself_has_no_difference(capsys: Capture) -> None:
    answer = run(capsys, "compare", RUN, RUN)
    assert answer.code == 0
    assert ": not sure, between 2." in answer.out.splitlines()[0]  # its steps spread too much for one run of each side
    assert "compare them" not in answer.err
    document = run(capsys, "compare", RUN, RUN, "--format", "json").data
    assert document["verdict"] == "not_sure"
    assert document["gone"] == document["came"] == []
    assert document["commands"][-1].startswith("perfscope compare ")
    for command in document["commands"]:
        assert f"- `{command}`" in answer.out


def pause_each_fifth(step: dict[str, Any]) -> None:
    """200 ms between two steps, before each fifth one."""
    set_time(20.0)(step)
    step["end_ns"] = 10**12 + step["step"] * 20_000_000 + step["step"] // 5 * 200_000_000
    if step["step"] > 1:
        step |= {"wall_ns": step["wall_ns"] + 200_000_000 * (step["step"] % 5 == 0)}
        step["gap_ns"] = 200_000_000 * (step["step"] % 5 == 0)


def test_a_pause_that_went_away_is_seen_over_the_loop(tmp_path: Path, capsys: Capture) -> None:
    """The typical step is the same; the loop is three times as fast."""
    a, b = copied(RUN, tmp_path / "a", pause_each_fifth), copied(RUN, tmp_path / "b", set_time(20.0))
    document = run(capsys, "compare", a, b, "--format", "json").data
    assert document["verdict"] == "faster"
    assert document["loop_time"]["a_s"] == pytest.approx(0.0602, rel=0.02)
    assert document["loop_time"]["b_s"] == pytest.approx(0.020, rel=0.02)
    assert abs(document["step_time"]["change"]) < 0.02
    assert [cause["id"] for cause in document["gone"]] == ["pauses"]
    lines = run(capsys, "compare", a, b, "--fail-on", "loop_time<-50%").out.splitlines()
    assert re.fullmatch(
        r"# .*: 3\.0 times faster \(at least \d\.\d times\): 5\.9\d+ s to 1\.9\d+ s for 99 steps", lines[0]
    )
    assert any(line.startswith("- Went away: Pause of 200 ms in every 5th step, ") for line in lines)
    slower = run(capsys, "compare", b, a, "--fail-on", "loop_time>+50%")
    assert slower.code == 3
    assert ": 3.0 times slower" in slower.out.splitlines()[0]


def test_another_batch_or_gpu_count_is_refused_with_the_reason(capsys: Capture) -> None:
    answer = run(capsys, "compare", RUN, OTHER)
    assert answer.code == 1
    for reason in ("different batch: 8 samples a step against 16", "different GPU count: 1 against 2"):
        assert reason in answer.out.splitlines()[0]
        assert reason in answer.err
    assert run(capsys, "compare", RUN, OTHER, "--format", "json").data["verdict"] == "incomparable"


def test_anyway_compares_per_token(capsys: Capture) -> None:
    answer = run(capsys, "compare", RUN, OTHER, "--anyway", "--format", "json")
    assert answer.code == 0
    document = answer.data
    assert document["per"] == "token"
    alone = {path: run(capsys, "analyze", path, "--only", "steps", "--format", "json").data for path in (RUN, OTHER)}
    steps = [alone[path]["results"]["steps"] for path in (RUN, OTHER)]
    rates = [of_run["tokens_per_step"] / of_run["median_s"] for of_run in steps]
    assert document["throughput"]["change"] == pytest.approx(rates[1] / rates[0] - 1, rel=1e-6)
    assert document["step_time"]["change"] == pytest.approx(rates[0] / rates[1] - 1, rel=1e-6)


@pytest.mark.parametrize(
    ("limits", "code", "exceeded"),
    [
        (("step_time>+3%",), 3, [True]),
        (("step_time>+5%",), 0, [False]),  # the interval contains the limit
        (("step_time>+10%", "tflops<-1%", "energy>+5%"), 3, [False, True, None]),
        (("memory>+5%", "step_time<-1%"), 0, [False, False]),
    ],
)
def test_a_limit_is_exceeded_where_the_whole_interval_is_beyond(
    pair: tuple[Path, Path], capsys: Capture, limits: tuple[str, ...], code: int, exceeded: list[bool | None]
) -> None:
    words = [word for limit in limits for word in ("--fail-on", limit)]
    answer = run(capsys, "compare", *pair, *words, "--format", "json")
    assert answer.code == code
    assert [limit["exceeded"] for limit in answer.data["limits"]] == exceeded
    for limit, is_exceeded in zip(limits, exceeded, strict=True):
        said = {True: f"{limit}: exceeded", None: f"{limit}: not checked", False: ""}[is_exceeded]
        assert said in answer.err


@pytest.mark.parametrize(
    ("limit", "problem"),
    [("step_time", "is no limit"), ("step_time>+3", "has no %"), ("speed>+3%", "names no figure that is compared")],
)
def test_a_limit_that_does_not_parse_is_one_line(capsys: Capture, limit: str, problem: str) -> None:
    answer = run(capsys, "compare", RUN, RUN, "--fail-on", limit)
    assert answer.code == 2
    assert not answer.out
    first, hint = answer.err.splitlines()
    assert first == f"perfscope: --fail-on {limit!r} {problem}"
    assert hint.startswith("  hint: ")


def test_ten_runs_are_each_compared_with_the_first_and_corrected(tmp_path: Path, capsys: Capture) -> None:
    runs = [copied(RUN, tmp_path / f"run{number}", set_time(20 + 0.5 * (number == 7))) for number in range(10)]
    document = run(capsys, "compare", *runs, "--format", "json").data
    assert document["schema"] == "perfscope/comparisons/1"
    assert [entry["verdict"] for entry in document["comparisons"]] == ["same"] * 6 + ["slower"] + ["same"] * 2
    assert document["comparisons"][0]["confidence"] == pytest.approx(1 - 0.05 / 9)
    pair = run(capsys, "compare", runs[0], runs[1], "--format", "json").data
    widths = [
        entry["step_time"]["interval"][1] - entry["step_time"]["interval"][0]
        for entry in (pair, document["comparisons"][0])
    ]
    assert widths[1] > widths[0]
    markdown = run(capsys, "compare", *runs).out
    assert markdown.startswith("# 9 compared with ")
    assert "## Verdicts" in markdown


def test_several_runs_of_a_side_are_the_unit(tmp_path: Path, capsys: Capture) -> None:
    for side, factor in (("a", 1.0), ("b", 1.01)):
        for number, ms in enumerate((20.0, 21.0, 20.5)):
            copied(RUN, tmp_path / side / f"run{number}", set_time(ms * factor))
    folders = run(capsys, "compare", tmp_path / "a", tmp_path / "b", "--format", "json").data
    assert folders["verdict"] == "not_sure"
    assert folders["step_time"]["covers"] == "runs"
    assert folders["a"]["runs"] == 3
    commas = [",".join(str(tmp_path / side / f"run{number}") for number in range(3)) for side in "ab"]
    assert run(capsys, "compare", *commas, "--format", "json").data["step_time"] == folders["step_time"]
    # One run of each would take the difference of the runs for one of the code.
    alone = run(capsys, "compare", tmp_path / "a" / "run0", tmp_path / "b" / "run1", "--format", "json").data
    assert alone["verdict"] == "slower"


def test_a_baseline_is_compared_as_the_run_that_it_was_saved_from(tmp_path: Path, capsys: Capture) -> None:
    baseline = tmp_path / "baseline.json"
    assert run(capsys, "compare", RUN, "--save", baseline).code == 0
    by_run = run(capsys, "compare", RUN, OTHER, "--anyway", "--format", "json").data
    by_baseline = run(capsys, "compare", baseline, OTHER, "--anyway", "--format", "json").data
    for key in ("verdict", "step_time", "energy", "memory", "terms", "unexplained_us", "setup"):
        assert by_baseline[key] == by_run[key], key


def test_traces_are_compared_by_their_profiled_steps(capsys: Capture) -> None:
    traces = ROOT / "fixtures" / "traces"
    document = run(capsys, "compare", traces / "single", traces / "ddp4", "--anyway", "--format", "json").data
    assert document["a"]["kind"] == "traces"
    assert document["verdict"] == "incomparable"  # without tokens nothing is per token
    own = run(capsys, "compare", traces / "ddp4", traces / "ddp4", "--format", "json").data
    assert own["verdict"] == "same"
    assert own["change_us"] == own["unexplained_us"] == 0


def test_a_single_step_cannot_tell(tmp_path: Path, capsys: Capture) -> None:
    def last_alone(step: dict[str, Any]) -> None:
        if step["step"] != 90:
            step["window"] = "profiled"

    single = copied(RUN, tmp_path / "single", last_alone)
    answer = run(capsys, "compare", single, RUN)
    assert "fewer than 5 steady-state steps" in answer.out.splitlines()[0]
    assert run(capsys, "compare", single, RUN, "--format", "json").data["verdict"] == "incomparable"


@pytest.mark.parametrize(
    ("name", "content", "problem"),
    [
        ("b.json", b'{"schema": "perfscope/baseline/7"}', "is 'perfscope/baseline/7', which this version of perfscope"),
        ("b.json", b'{"schema": "perfscope/baseline/1", "setup": ', "is not complete JSON"),
        ("b.json", b'{"schema": "perfscope/baseline/1", "setup": ' + b"[" * 100_000, "is not complete JSON"),
        ("b.json", b'{"schema": "perfscope/baseline/1", "step_time_s": [[0.1, -1]]}', "is damaged"),
        ("b.log", b"hello\n", "is neither a trace nor a log of a known framework"),
        ("nowhere", None, "does not exist"),
    ],
)
def test_what_cannot_be_read_is_one_line(
    tmp_path: Path, capsys: Capture, name: str, content: bytes | None, problem: str
) -> None:
    if content is not None:
        (tmp_path / name).write_bytes(content)
    answer = run(capsys, "compare", RUN, tmp_path / name)
    assert answer.code == 1
    assert not answer.out
    assert problem in answer.err.splitlines()[0]
    assert len(answer.err.splitlines()) <= 2
