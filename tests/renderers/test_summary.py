"""The summary at the end of ``perfscope profile``, from the JSON of an analysis."""

from __future__ import annotations

from typing import Any

from perfscope.renderers.summary import summarize


def analysis_of(**results: Any) -> dict[str, Any]:
    return {"results": results, "skipped": [], "warnings": ["00000/steps.jsonl: ends in half a line"] * 2}


def host(**parts_us: float) -> dict[str, Any]:
    return {"ranks": [{"rank": 0, "window_us": 1000.0, **{f"{name}_us": us for name, us in parts_us.items()}}]}


def test_data_loading_is_named_and_the_largest_share_comes_first() -> None:
    shares = host(compute=40.0, exposed_communication=0.0, exposed_data_loading=940.0, other=20.0)
    assert summarize(analysis_of(host=shares))[0] == (
        "profiled steps of rank 0, 1 ms: data loading 94.0 %, compute 4.0 %, outside of PyTorch 2.0 %"
    )


def test_a_warning_is_printed_once() -> None:
    assert summarize(analysis_of()) == ["warning: 00000/steps.jsonl: ends in half a line"]


def test_a_run_on_processors_does_not_miss_the_breakdown_of_devices() -> None:
    analysis = analysis_of(host=host(compute=1000.0))
    analysis["skipped"] = [{"analyzer": name, "reason": "training ran without a GPU"} for name in ("gpus", "breakdown")]
    assert not any("not computed" in line for line in summarize(analysis))


def test_the_wall_clock_is_at_most_five_parts_as_people_say_them() -> None:
    keys = ("set_up", "imports", "steps", "first_step", "saves", "validation", "between_steps", "hooks", "end")
    shares = (0.4, 0.1, 0.2, 0.05, 0.09, 0.06, 0.05, 0.03, 0.02)
    parts = [{"part": key, "label": key, "share": share} for key, share in zip(keys, shares, strict=True)]
    first, _ = summarize(analysis_of(wall_clock={"rank": 3, "wall_s": 16.2, "parts": parts}))
    named = "start-up 50.0 %, steps 20.0 %, saves 9.0 %, evaluation 6.0 %, the rest 15.0 %"
    assert first == f"wall clock of rank 3, 16.2 s: {named}"


def test_a_finding_is_one_line_with_what_where_how_much_and_what_to_do() -> None:
    pause = {
        "title": "Pause",
        "place": "report (train.py:11)",
        "cost": "4 s of 8 s (50 % of the loop)",
        "advice": "Stop.",
    }
    line, *_ = summarize(analysis_of(findings=[pause]))
    assert line == "finding 1: Pause, in report (train.py:11): 4 s of 8 s (50 % of the loop). Stop."


def test_a_window_that_slowed_later_steps_is_said() -> None:
    effect = {"verdict": "slower", "before": 15, "before_s": 0.02, "after_s": 0.025, "change": 0.25}
    steps = {"count": 60, "source": "optimizer", "ranks": [{}], "step_time_s": None, "window_effect": effect}
    said = "the window slowed the steps after it by 25 %, to a median of 25 ms from 20 ms: figures are of the 15 steps "
    assert summarize(analysis_of(steps=steps))[1].startswith(said)
    effect["verdict"] = "no difference found"
    assert not any("slowed" in line for line in summarize(analysis_of(steps=steps)))
