"""`perfscope report refresh` on tables that compare two precisions."""

from __future__ import annotations

from typing import Any

import pytest

from perfscope.sources.published.markdown import Cell
from perfscope.sources.published.precisions import split_precisions
from perfscope.tables.published import Quantity, Span

SQUEEZED = """\
| **GPUs** | **Batch size / GPU** | **Throughput - mixed precision** | **Throughput - FP32** | \
**Throughput speedup (FP32 to mixed precision)** | **Weak scaling - FP32** | **Weak scaling - mixed precision** |
| -: | -: | -: | -: | -: | -: | -: |
| 1 | 4,2 | 29.74  | 7.36  | 4.04 | 1.00 | 1.00 |
| 4 | 4,2 | 97.28  | 26.64 | 3.65 | 3.62 | 3.27 |
| 8 | 4,2 | 189.77 | 52.39 | 3.62 | 7.12 | 6.38 |
"""


def cells(answer: Any, verdict: str) -> list[tuple[str, str]]:
    return [(cell["published"], cell["text"]) for cell in answer.data["results"]["cells"] if cell["verdict"] == verdict]


def test_every_ratio_of_both_precisions_is_recomputed(refresh: Any) -> None:
    answer, written = refresh(SQUEEZED, "--format", "json")
    assert (len(cells(answer, "rounded")), len(answer.data["results"]["cells"])) == (9, 9)
    assert written == SQUEEZED.encode()


def test_the_scaling_of_the_other_precision_is_wrong(refresh: Any) -> None:
    swapped = SQUEEZED.replace("3.62 | 3.27", "3.27 | 3.62").replace("7.12 | 6.38", "6.38 | 7.12")
    answer, _ = refresh(swapped, "--check", "--format", "json")
    assert cells(answer, "wrong") == [("3.27", "3.62"), ("6.38", "7.12"), ("3.62", "3.27"), ("7.12", "6.38")]


def test_one_wrong_speedup_is_wrong(refresh: Any) -> None:
    answer, _ = refresh(SQUEEZED.replace("3.65", "3.05"), "--check", "--format", "json")
    assert cells(answer, "wrong") == [("3.05", "3.65")]


UPSIDE_DOWN = """\
| GPUs | Throughput - TF32 (samples/s) | Throughput - mixed precision (samples/s) | \
Throughput speedup (TF32 to mixed precision) | Weak scaling - TF32 | Weak scaling - mixed precision |
| -: | -: | -: | -: | -: | -: |
| 1 | 22.59M  | 34.08M  | 0.66 | 1 | 1 |
| 8 | 110.16M | 142.90M | 0.77 | 4.88 | 4.19 |
"""

BATCHES_WITHOUT_BASE = """\
| GPUs | Batch size / GPU | Throughput - TF32 [img/s] | Throughput - mixed precision [img/s] | \
Throughput speedup (TF32 - mixed precision) | Weak scaling - TF32 | Weak scaling - mixed precision |
| -: | -: | -: | -: | -: | -: | -: |
| 1 | 2 | 7.57  | 14.47 | 1.91 |   |   |
| 1 | 4 | 8.51  | 19.35 | 2.27 | - | - |
| 8 | 2 | 44.55 | 53.40 | 1.20 | 5.26 | 3.69 |
"""

STRONG = """\
| Batch size / GPU | GPUs | Throughput - FP32 | Throughput - AMP | Throughput speedup (FP32 to AMP) \
| Strong scaling - FP32 | Strong scaling - AMP |
| -: | -: | -: | -: | -: | -: | -: |
| 32 | 1 | 3017.57  | 6522.37  | 2.16 | 1.00 | 1.00 |
| 64 | 1 | -        | 7596.32  | 2.52 | -    | 1.00 |
| 32 | 4 | 12135.04 | 23660.14 | 1.95 | 4.02 | 3.11 |
"""

OTHER_UNIT = """\
| GPUs | Throughput - mixed precision | Throughput - TF32 | Throughput speedup (mixed precision to TF32) |
| -: | -: | -: | -: |
| 1 | 1.31 | 1.30M | 1.01 |
"""


@pytest.mark.parametrize("text", [UPSIDE_DOWN, BATCHES_WITHOUT_BASE, STRONG, OTHER_UNIT])
def test_what_follows_by_the_authors_definition_is_left_alone(refresh: Any, text: str) -> None:
    answer, written = refresh(text, "--format", "json")
    assert {cell["verdict"] for cell in answer.data["results"]["cells"]} <= {"rounded", "from unrounded inputs"}
    assert written == text.encode()


def test_a_share_of_hours_and_minutes_is_no_change_of_the_hours(refresh: Any) -> None:
    text = "| mode | GPUs | samples/s | Speedup | total time |\n| - | - | - | - | - |\n"
    text += "| sync | 8 | 100 | 1.00 | 19h18m |\n| async | 8 | 124 | 1.24 | 15h34m (+23%) |\n"
    answer, written = refresh(text, "--format", "json")
    assert [cell["column"] for cell in answer.data["results"]["cells"] if cell["verdict"] == "wrong"] == []
    assert written == text.encode()


def test_a_table_of_one_throughput_is_no_such_table() -> None:
    headings = ["GPUs", "Throughput - FP32", "Weak scaling - FP32"]
    assert split_precisions(headings, []) == []


def test_each_part_has_the_columns_of_its_precision() -> None:
    headings = ["GPUs", "Throughput - A", "Throughput - B", "Throughput speedup (A to B)", "Weak scaling - B"]
    row = [Cell(text, Span(1, 0, 0)) for text in ("1", "10", "20", "2.00", "1.00")]
    scaling, speedup = split_precisions(headings, [row])
    assert [column.quantity for column in scaling] == [Quantity.GPUS, None, Quantity.RATE, None, Quantity.SPEEDUP]
    assert [column.quantity for column in speedup] == [
        None,
        Quantity.RATE,
        Quantity.SECOND_RATE,
        Quantity.PRECISION_SPEEDUP,
        None,
    ]
