"""`perfscope report refresh` on tables of other authors: what it cannot know it neither doubts nor rewrites."""

from __future__ import annotations

from typing import Any

import pytest

LONGER_SEQUENCES = """\
| GPUs | bsz | seq | Samples per second | Speedup (x) |
| ---- | --- | --- | ------------------ | ----------- |
| 256  | 256 | 8192  | 60.5  | 1    |
| 512  | 256 | 8192  | 111.2 | 1.84 |
| 512  | 128 | 16384 | 108.0 | 1.79 |
| 512  | 64  | 32768 | 106.0 | 1.75 |
"""

MARKED_BASE = """\
| #GPU | Generator | Latency [ms] | Speed Up  |
| ---- | --------- | ------------ | --------- |
| 1    | A         | 616.14       | ---       |
| 8    | A         | 999.39       | 1x (base) |
| 8    | B         | 614.26       | 1.8x      |
"""


@pytest.mark.parametrize("text", [LONGER_SEQUENCES, MARKED_BASE])
def test_a_row_without_a_baseline_of_its_own_group_is_left_alone(refresh: Any, text: str) -> None:
    answer, written = refresh(text, "--format", "json")
    cells = answer.data["results"]["cells"]
    assert {cell["verdict"] for cell in cells} <= {"rounded", "other convention"}
    assert answer.data["written"] is False
    assert written == text.encode()


def test_rows_of_one_group_are_still_compared(refresh: Any) -> None:
    answer, _ = refresh(LONGER_SEQUENCES.replace("1.84", "1.64"), "--check", "--format", "json")
    assert [cell["text"] for cell in answer.data["results"]["cells"] if cell["verdict"] == "wrong"] == ["1.84"]


def other_convention(factor: float, speeds: tuple[int, ...]) -> str:
    return "| GPUs | Size | GBS | Speed | TFlops |\n| -: | -: | -: | -: | -: |\n" + "".join(
        f"| 64 | 52B | 1024 | {speed}s | {53.66738 * 127 / speed * factor:.2f} |\n" for speed in speeds
    )


@pytest.mark.parametrize("factor", [0.97, 0.75, 1.0737])
def test_a_column_of_another_convention_is_said_once_and_left_alone(refresh: Any, factor: float) -> None:
    text = other_convention(factor, (127, 137, 147, 157))
    answer, written = refresh(text, "--format", "json")
    assert {cell["verdict"] for cell in answer.data["results"]["cells"]} == {"other convention"}
    assert answer.data["counts"]["other convention"] == 4
    assert written == text.encode()


def test_a_change_that_may_be_of_several_rows_is_left_alone(refresh: Any) -> None:
    text = "| Net | AP |\n| - | - |\n| A | 29.3 |\n| B | 36.2 |\n| C | 31.4(+3.3) |\n"
    answer, written = refresh(text, "--format", "json")
    assert answer.data["results"]["cells"] == []
    assert "of something else" in answer.data["results"]["not_recomputed"][0]["reason"]
    assert written == text.encode()


OF_ANOTHER_COLUMN = """\
| GPU      | Resolution | Time (s) | Tiled time (s) |
| -------- | ---------- | -------- | -------------- |
| RTX 4090 | 512x512    | 0.031    | 0.031 (0%)     |
| RTX 4090 | 1024x1024  | 0.148    | 0.301 (+103%)  |
| RTX 4080 | 512x512    | 0.05     | 0.050 (0%)     |
| RTX 4080 | 1024x1024  | 0.224    | 0.356 (+59%)   |
"""

OF_A_NUMBER_IN_THE_CELL = """\
| Case | Result               |
| ---- | -------------------- |
| a    | 30 vs 28 target      |
| b    | 24 vs 27 target (-11%) |
| c    | 241 \u2192 338 (+40%)     |
"""


@pytest.mark.parametrize("text", [OF_ANOTHER_COLUMN, OF_A_NUMBER_IN_THE_CELL])
def test_a_change_of_something_else_than_the_first_row_is_left_alone(refresh: Any, text: str) -> None:
    answer, written = refresh(text)
    assert (answer.code, written) in ((0, text.encode()), (1, text.encode()))


def test_a_change_near_to_the_right_one_is_still_wrong(refresh: Any) -> None:
    answer, _ = refresh(
        "| run | samples/s |\n| - | - |\n| a | 533 |\n| b | 506 (\u21934.6%) |\n", "--check", "--format", "json"
    )
    assert [(cell["text"], cell["verdict"]) for cell in answer.data["results"]["cells"]] == [("5.1", "wrong")]


OF_SAMPLES = """\
| Per-GPU batch | s/it | Speedup |
| ------------- | ---- | ------- |
| 1             | 2.0  | 1.0x    |
| 2             | 3.0  | 1.33x   |
| 4             | 5.0  | 1.6x    |
"""


def test_speed_ups_that_are_far_from_their_rows_are_of_something_else(refresh: Any) -> None:
    answer, written = refresh(OF_SAMPLES)
    assert written == OF_SAMPLES.encode()
    assert "2 of 3 cells of Speedup may follow another convention" in answer.out


def test_a_stale_column_of_speed_ups_is_recomputed(refresh: Any) -> None:
    text = "| GPUs | samples/s | Speedup |\n| - | - | - |\n| 1 | 100 | 1.00 |\n| 2 | 190 | 1.80 |\n| 4 | 372 | 3.52 |\n"
    _, written = refresh(text)
    assert b"| 1.90 |" in written
    assert b"| 3.72 |" in written


WITHOUT_RECOMPUTATION = """\
| Size | GPUs | TFLOPs/GPU | tokens/s |
| ---- | ---- | ---------- | -------- |
| 480M | 4    | 478.6      | 668,120  |
| 480M | 4    | 519.9      | 725,740  |
| 810M | 8    | 342.5      | 521,024  |
| 810M | 8    | 427.9      | 651,008  |
"""


@pytest.mark.parametrize(
    "text",
    [
        WITHOUT_RECOMPUTATION,
        "| Size | GPUs | GBS | Speed | TFlops |\n| - | - | - | - | - |\n| 52B | 64 | 1024 | 127s | 40.25 |\n",
        "| Size | GPUs | GBS | Speed | TFlops |\n| - | - | - | - | - |\n| 52B | 64 | 1024 | 127s | 107.3 |\n",
    ],
)
def test_tflops_of_passes_or_a_sequence_length_that_nothing_states_are_left_alone(refresh: Any, text: str) -> None:
    answer, written = refresh(text, "--format", "json")
    assert {cell["verdict"] for cell in answer.data["results"]["cells"]} == {"other convention"}
    assert written == text.encode()
