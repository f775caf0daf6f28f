"""The figures that the report on overhead states beside its generated tables are those of the fixtures."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Sequence
from statistics import mean, median, stdev
from typing import Any

from tests.conftest import ROOT

FIXTURES = ROOT / "fixtures" / "overhead"
REPORT = (ROOT / "reports" / "h200-overhead.md").read_text(encoding="utf-8")


def read(name: str) -> Any:
    return json.loads((FIXTURES / name).read_text(encoding="utf-8"))


def has_row(*cells: str) -> bool:
    pattern = r"\|\s*" + r"\s*\|\s*".join(re.escape(cell) for cell in cells) + r"\s*\|"
    return re.search(pattern, REPORT) is not None


def test_the_costs_of_hooks_are_those_of_the_steps() -> None:
    runs = read("h200-hook-costs.json")
    names = {(run["name"], phase["loop"], phase["kind"]) for run in runs for phase in run["phases"]}
    assert len(names) == 8 + 4 + 6
    for name, loop, kind in names:
        phases = [phase for run in runs if run["name"] == name for phase in run["phases"]]
        own = [phase for phase in phases if (phase["loop"], phase["kind"]) == (loop, kind)]
        hooked, bare = ([phase for phase in own if phase["hooked"] is is_hooked] for is_hooked in (True, False))
        counted = [time_us for phase in hooked for time_us in phase["counted_us"]]
        around, clocks = ([time_us for phase in part for time_us in phase["around_us"]] for part in (hooked, bare))
        step_ms = median(time_us for phase in hooked for time_us in phase["step_us"]) / 1000
        cells = [name, loop, kind, str(len(counted)), f"{step_ms:.1f}"]
        cells += [f"{mean(counted):.0f}", f"{median(counted):.0f}", f"{mean(counted) / step_ms / 10:.2f}"]
        passed = mean(around) - mean(clocks)
        cells += [f"{passed:.0f}", f"{median(around) - median(clocks):.0f}", f"{passed / step_ms / 10:.2f}"]
        assert has_row(*cells), cells


def test_every_training_behind_windows_passed() -> None:
    verdicts = read("h200-after-windows.json")
    assert len(verdicts) == 9
    assert [verdict["problem"] for verdict in verdicts] == [""] * 9
    whole = [verdict["kernels"] for verdict in verdicts if verdict["case"] != "ends-in-window"]
    assert all(len(set(kernels)) == 1 for kernels in whole)
    assert max(count for verdict in verdicts for count in verdict["others"]) == 70


def test_megatron_recorded_the_same_kernels_in_each_window() -> None:
    (verdict,) = read("h200-after-windows-megatron.json")
    assert verdict["problem"] == ""
    assert verdict["kernels"] == [2864] * 6
    assert sorted(verdict["others"]) == [0, 0, 0, 0, 0, 3]


def test_launches_of_megatron_behind_a_window_cost_what_they_cost_without_perfscope() -> None:
    probe = read("h200-megatron-probe.json")
    launches = {}
    for kind, name in (("captured", "with a window at step 41"), ("bare", "without perfscope")):
        steps = [row[0] for row in probe[kind][0]]
        parts = [f"{median(steps[first - 1 : last]):.1f}" for first, last in ((8, 39), (48, 80), (81, 150))]
        rows = [row for rank in probe[kind] for row in rank[80:]]
        launches[kind] = [
            median(row[3] for row in rows if low <= row[2] < high) for low, high in ((0, 720), (1000, 1300))
        ]
        assert has_row(name, *parts, *(f"{launch:.2f}" for launch in launches[kind]))
    assert all(abs(ours / bare - 1) < 0.06 for ours, bare in zip(*launches.values(), strict=True))


def test_steps_of_megatron_behind_windows_are_no_longer_than_later_ones_whether_traces_are_compressed_or_not() -> None:
    windows = read("h200-megatron-windows.json")
    kinds = ((True, "its traces are compressed and measured"), (False, "nothing is compressed"))
    for is_compressed, name in kinds:
        own = [window["step_ms"] for window in windows if window["compressed"] is is_compressed]
        cells = [name, str(len(own))]
        for part in (0, 1):
            changes = [100 * math.log(steps[part] / steps[2]) for steps in own]
            error = stdev(changes) / math.sqrt(len(changes))
            cells += [f"{mean(changes):.1f}", f"{error:.1f}"]
            assert mean(changes) < 2 * error
        assert has_row(*cells), cells
    step_ms = median(step for window in windows for step in window["step_ms"])
    assert f"their steps ({step_ms:.0f} ms)" in REPORT


def test_pairs_of_megatron_on_the_same_cores_say_how_much_longer_steps_are_behind_a_window() -> None:
    pairs = read("h200-megatron-pairs.json")
    for runs in ((1,), (2,), (1, 2)):
        own = [pair for pair in pairs if pair["run"] in runs]
        cells = []
        for part in ("early", "late"):
            changes = [median(pair[part]) - median(pair["ahead"]) for pair in own]
            cells += [f"{mean(changes):.1f}", f"{stdev(changes) / math.sqrt(len(changes)):.1f}"]
        if len(runs) == 1:
            assert has_row(str(runs[0]), str(len(own)), str(own[0]["windows"]), *cells)
        else:
            assert f"over all {len(own)} pairs later steps are {cells[2]} % longer" in REPORT
            assert (
                f"with a standard error of {cells[3]} (just behind a window {cells[0]} %, error {cells[1]})" in REPORT
            )


def test_megatron_in_turns_of_two_steps_takes_behind_a_window_what_it_took_ahead_of_it() -> None:
    pairs = read("h200-megatron-turns.json")
    names = {
        "modules": "windows of `--modules --shapes`",
        "plain": "windows without options",
        "hooks": "the hooks, and no window",
    }
    for run, kind in {(pair["run"], pair["kind"]) for pair in pairs}:
        own = [pair for pair in pairs if (pair["run"], pair["kind"]) == (run, kind)]
        cells = [str(run), names[kind], str(len(own)), f"{median(pair['step_ms'] for pair in own):.1f}"]
        assert has_row(*cells, *describe_changes(own, "behind_one"), *describe_changes(own, "behind_five"))
    captured = [pair for pair in pairs if pair["kind"] == "modules"]
    change, error = describe_changes(captured, "behind_one")
    stated = f"over all {len(captured)} pairs with `--modules --shapes` by {change} %, with a standard error of {error}"
    assert stated in REPORT
    change, error = describe_changes(captured, "behind_five")
    assert f"{change} %, with an error of {error}" in REPORT


def describe_changes(pairs: list[Any], part: str) -> list[str]:
    """The mean change of the lead against that ahead of the window, and its standard error, in percent."""
    changes = [mean(pair[part]) - mean(pair["ahead"]) for pair in pairs if pair[part]]
    if not changes:
        return ["n/a", "n/a"]
    error = f"{stdev(changes) / math.sqrt(len(changes)):.2f}" if len(changes) > 1 else "n/a"
    return [f"{mean(changes):+.2f}", error]


def test_host_bound_steps_are_longer_in_the_first_seconds_behind_a_window() -> None:
    leads = read("h200-processes.json")["processes"]["host-bound"]["leads_percent"]
    first, later = (
        [mean(behind[part]) - mean(ahead) for ahead, behind in leads] for part in (slice(5), slice(5, None))
    )
    error = stdev(first) / math.sqrt(len(first))
    assert f"by {mean(first):.1f} % (error {error:.1f}) in the first hundred" in REPORT
    assert f"and by {mean(later):.1f} % in\nthe three hundred behind those" in REPORT


def test_pairs_in_which_something_else_happened_and_all_runs_of_plain_loops_together() -> None:
    variants = read("h200-behind-variants.json")
    names = ("a window of perfscope", "330,000 allocations, freed in another order", "nothing")
    runs = [(0.64, 0.56), (1.10, 0.55)]  # earlier ones, whose figures the report states
    runs += [
        (part["change_percent"], part["error_percent"])
        for part in (read("h200-behind.json")["behind"], read("h200-processes.json")["processes"]["host-bound"])
    ]
    for kind, name in zip(("perfscope", "churn", "none"), names, strict=True):
        changes = [behind - ahead for ahead, behind in variants[kind]]
        error = stdev(changes) / math.sqrt(len(changes))
        assert has_row(name, str(len(changes)), f"{mean(changes):+.2f}", f"{error:.2f}")
        if kind == "perfscope":
            runs.append((mean(changes), error))
    weights = [error**-2 for _, error in runs]
    together = sum(weight * change for weight, (change, _) in zip(weights, runs, strict=True)) / sum(weights)
    assert f"say {together:+.2f} % together, with a standard error of {sum(weights) ** -0.5:.2f}" in REPORT


def test_the_costs_of_pipelines_are_those_of_the_pairs() -> None:
    runs = read("h200-pipelines.json")
    changes: dict[str, list[float]] = {"torch": [], "deepspeed": [], "megatron": []}
    without: list[float] = []
    for run in runs:
        for name, training in run["trainings"].items():
            own = training["changes_percent"]
            error = f"{stdev(own) / math.sqrt(len(own)):.2f}" if len(own) > 1 else "n/a"
            first = training["hooks_all_us"] / training["all_timed_ms"] / 10
            later = training["hooks_mean_us"] / training["alone_ms"] / 10
            cells = [str(run["run"]), name, str(len(own)), f"{training['before_ms']:.1f}"]
            cells += [f"{training['bare_before_ms']:.1f}", f"{mean(own):+.2f}", error]
            cells += [f"{training['hooks_all_us']:.0f}", f"{first:.2f}", f"{training['hooks_mean_us']:.0f}"]
            cells += [f"{training['hooks_median_us']:.0f}", f"{later:.2f}"]
            cells.append(f"{training['timed_steps']:.0f} of {training['rest_steps']}")
            assert has_row(*cells), cells
            assert training["detached"] or name.endswith("no window")
            if name.endswith("host-bound"):
                changes[name.partition(",")[0]] += own
            elif name.endswith("no window"):
                without += own
    said = {name: describe_mean(own) for name, own in changes.items()}
    assert said == {"torch": "-0.4 % (1.7)", "deepspeed": "1.2 % (0.5)", "megatron": "1.3 % (0.6)"}
    assert f"the ten of DeepSpeed by {describe_mean(without)}" in REPORT
    assert len(without) == 10
    more = mean(changes["deepspeed"]) - mean(without)
    error_of_both = math.hypot(*(stdev(own) / math.sqrt(len(own)) for own in (changes["deepspeed"], without)))
    assert f"pairs change by {more:.1f} % more, with a standard error of {error_of_both:.1f}" in REPORT
    controls = [training for run in runs for name, training in run["trainings"].items() if name.endswith("no window")]
    leads = [lead for training in controls for lead in training["leads_percent"]]
    behind = mean(leads) + mean(without)
    assert f"took {-mean(leads):.1f} % less than their twins in the first part and {behind:.1f} % more" in REPORT
    whole = [change for own in changes.values() for change in own]
    error = f"{stdev(whole) / math.sqrt(len(whole)):.1f}"
    assert f"the {len(whole)} host-bound pairs are {mean(whole):.1f} % slower" in REPORT
    assert f"with a standard error of {error}: DeepSpeed" in REPORT


def describe_mean(values: Sequence[float]) -> str:
    return f"{mean(values):.1f} % ({stdev(values) / math.sqrt(len(values)):.1f})"
