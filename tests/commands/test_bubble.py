"""``perfscope plan --microbatches``: the bubble of a pipeline that has not run."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest

from perfscope.schedules.catalog import Schedule
from tests.analyzers.tflops.making import answer, ask, refused


def _words(**options: Any) -> list[str]:
    return [word for name, value in options.items() for word in (f"--{name.replace('_', '-')}", str(value))]


def _ask(**options: Any) -> dict[str, Any]:
    return answer("plan", *_words(**options))


def _text(**options: Any) -> str:
    return ask("plan", *_words(**options)).stdout


def test_the_answer_has_both_denominators_and_the_simulation_agrees_with_the_formula() -> None:
    answer = _ask(pp=16, microbatches=256)
    assert answer["schema"] == "perfscope/bubble/1"
    assert answer["fraction_of_total"] == pytest.approx(15 / 271, abs=1e-15)
    assert answer["fraction_of_ideal"] == pytest.approx(15 / 256, abs=1e-15)
    assert answer["closed_form"]["fraction_of_total"] == answer["simulated"]["fraction_of_total"]
    assert answer["closed_form"]["applies"] is True


@pytest.mark.parametrize("schedule", list(Schedule))
def test_every_schedule_that_is_offered_answers(schedule: Schedule) -> None:
    answer = _ask(pp=4, microbatches=8, schedule=schedule)
    published = {"gpipe": 3 / 11, "1f1b": 3 / 11, "interleaved": 3 / 19, "zb-h1": 1 / 9, "dualpipe": 1 / 13}
    assert answer["fraction_of_total"] == pytest.approx(published.get(schedule, 0), abs=1e-15)
    assert answer["schedule"] == schedule


def test_times_are_in_microseconds_and_a_stage_adds_up_to_the_step() -> None:
    answer = _ask(pp=2, microbatches=2, forward="1ms", backward="1ms", weight="1ms")
    assert answer["simulated"]["period_us"] == 9000
    assert [stage["useful_us"] + stage["idle_us"] for stage in answer["simulated"]["stages"]] == [9000, 9000]
    assert answer["closed_form"]["bubble_us"] == 3000
    assert answer["times"]["backward_us"] == [2000, 2000]


def test_unequal_stages_are_simulated_and_the_formula_is_marked_as_not_applying() -> None:
    answer = _ask(pp=2, microbatches=4, forward="1ms,2ms", backward="2ms,4ms")
    assert answer["closed_form"]["applies"] is False
    # Stage 1 works 4 x 6 ms without a pause from 1 ms on; the last gradient reaches stage 0 at 25 ms and takes 2 ms.
    assert answer["simulated"]["section_us"] == 27_000
    assert answer["fraction_of_total"] == pytest.approx(1 - (4 * 3 + 4 * 6) / (2 * 27))


def test_transfer_time_enlarges_the_bubble_and_zero_is_a_transfer_time() -> None:
    none = _ask(pp=4, microbatches=8, forward="10ms", transfer="0")
    some = _ask(pp=4, microbatches=8, forward="10ms", transfer="1ms")
    assert none["fraction_of_total"] == pytest.approx(3 / 11)
    assert some["fraction_of_total"] > none["fraction_of_total"]


def test_the_206b_model_on_256_gpus_needs_more_chunks() -> None:
    """p = 64 and 4 chunks gave 3.9 TFLOPs: without a bubble 3.9 x 67 / 4 = 65.3, so 30 needs 63 x 30 / 35.3 chunks."""
    answer = _ask(pp=64, microbatches=4, tflops="3.9", target_tflops="30")
    assert answer["target"]["limit_tflops"] == pytest.approx(3.9 * 67 / 4)
    assert answer["target"]["microbatches"] == 54
    assert 65.325 * 53 / (53 + 63) < 30 <= 65.325 * 54 / (54 + 63)


def test_a_throughput_beyond_the_limit_is_not_promised() -> None:
    assert _ask(pp=64, microbatches=4, tflops="3.9", target_tflops="66")["target"]["microbatches"] is None
    text = _text(pp=64, microbatches=4, tflops="3.9", target_tflops="66")
    assert "cannot be reached by more micro-batches" in text


def test_alternatives_say_what_else_would_give() -> None:
    answer = _ask(pp=4, microbatches=8)
    alternatives = {alternative["change"]: alternative for alternative in answer["alternatives"]}
    assert alternatives["16 micro-batches"]["fraction_of_total"] == pytest.approx(3 / 19)
    assert alternatives["16 micro-batches"]["speedup"] == pytest.approx((16 / 19) / (8 / 11))
    assert alternatives["interleaved, 2 chunks per stage"]["fraction_of_total"] == pytest.approx(3 / 19)
    assert alternatives["zb-h2"]["peak_microbatches_in_flight"] == 7
    assert alternatives["as it is"]["peak_microbatches_in_flight"] == 4


def test_the_svg_has_a_bar_for_every_operation(tmp_path: Path) -> None:
    target = tmp_path / "schedule.svg"
    said = ask("plan", *_words(pp=4, microbatches=8, svg=target)).stderr
    root = ElementTree.fromstring(target.read_text("utf-8"))
    bars = [element for element in root.iter() if re.search(r"fill-(forward|backward)", element.get("class", ""))]
    bars = [element for element in bars if "mark" in element.get("class", "").split()]
    assert len(bars) == 4 * 8 * 2
    assert said == f"perfscope: wrote {target}\n"
    assert list(tmp_path.iterdir()) == [target]


@pytest.mark.parametrize(
    "options",
    [
        {"pp": 0, "microbatches": 8},
        {"pp": 4, "microbatches": 8, "virtual_stages": 2},
        {"pp": 4, "microbatches": 8, "virtual_stages": 0, "schedule": Schedule.INTERLEAVED},
        {"pp": 4, "microbatches": 8, "forward": "1ms,2ms"},
        {"pp": 4, "microbatches": 8, "forward": "0"},
        {"pp": 4, "microbatches": 8, "backward": "1ms"},
        {"pp": 4, "microbatches": 8, "forward": "1ms", "weight": "1ms"},
        {"pp": 4, "microbatches": 8, "tflops": "3.9"},
        {"pp": 4, "microbatches": 8, "tflops": "nan", "target_tflops": "4"},
        {"pp": 4, "microbatches": 8, "svg": "schedule.png"},
        {"microbatches": 8},
        {"pp": 4, "microbatches": 8, "gpus": 8},
    ],
)
def test_what_cannot_be_right_is_said(options: dict[str, Any]) -> None:
    assert refused("plan", *_words(**options)).count("\n") <= 2


def test_fewer_micro_batches_than_stages_is_answered_and_said() -> None:
    assert "4 micro-batches cannot fill 8 stages" in _text(pp=8, microbatches=4)


def test_times_that_are_assumed_beside_typed_ones_are_said() -> None:
    text = _text(pp=2, microbatches=4, forward="10ms,30ms")
    assert "- The backward pass is assumed to take 20 ms, 60 ms: 2 x forward.\n" in text
    assert "- Half of the backward pass is assumed to be the weight gradient (--weight).\n" in text
    assert "- Transfers between stages are assumed to take no time (--transfer).\n" in text
