"""`perfscope report refresh`: the verdict on each cell, and rows that contradict themselves."""

from __future__ import annotations

from typing import Any

from tests.commands.published_tables import TABLE, by_row


def test_rows_that_contradict_themselves_are_named_and_never_changed(refresh: Any) -> None:
    text = TABLE.replace("|   4 | 1024 | 126s  |", "|   4 | 1536 | 189s  |").replace(
        "|  2 |  8 | 256 |   3", "|  1 |  8 | 256 |   6"
    )
    answer, _ = refresh(text, "--check", "--format", "json")
    problems = {one["line"]: one["problem"] for one in answer.data["results"]["contradictions"]}
    assert problems == {
        6: "GBS 1536, but GAS 256 x MBS 4 x DP 1 = 1024",
        8: "GPUs 64, but TP 4 (line 12) x PP 8 x DP 1 = 32",
    }


def test_a_contradiction_alone_ends_a_check_with_3(refresh: Any) -> None:
    right = TABLE.replace("46.7", "49.7").replace("49.1", "49.2")
    assert refresh(right, "--check")[0].code == 0
    assert (
        refresh(
            right.replace("|   4 |    4 | 0.661s", "|   1 |    4 | 0.661s").replace(
                "|  1 |  4 |   4 |   1 |", "|  2 |  4 |   4 |   1 |"
            ),
            "--check",
        )[0].code
        == 3
    )


SPEEDUP = """\
| node_num | batch_size_per_device | gpu_num_per_node | samples/s | speedup | efficiency |
| -------- | --------------------- | ---------------- | --------- | ------- | ---------- |
| 1        | 8                     | 1                | 22.65     | 1       | 100%       |
| 1        | 8                     | 4                | 89.1      | 3.93    | 98.3%      |
| 2        | 8                     | 8                | 292.63    | 12.92   | 81.8%      |
| 4        | 8                     | 8                |           |         |            |
| 1        | 16(max)               | 1                | 23.96     | 1       | 100%       |
| 1        | 16                    | 4                | 95.16     | 3.9     | 99.2%      |
"""


def test_speed_up_and_efficiency_are_against_the_row_of_one_gpu_of_the_same_batch(refresh: Any) -> None:
    answer, _ = refresh(SPEEDUP, "--check", "--format", "json")
    assert {line: cell[1:] for line, cell in by_row(answer, "speedup").items()} == {
        3: ("1", "rounded"),
        4: ("3.93", "rounded"),
        5: ("12.92", "rounded"),
        7: ("1", "rounded"),
        8: ("4.0", "truncated"),
    }
    assert {line: cell[1:] for line, cell in by_row(answer, "efficiency").items()} == {
        3: ("100", "rounded"),
        4: ("98.3", "rounded"),
        5: ("80.7", "wrong"),
        7: ("100", "rounded"),
        8: ("99.3", "truncated"),
    }


CHANGES = """\
| run    | memory (MB)       | samples/s    |
| ------ | ----------------- | ------------ |
| stage0 | 15336             | 533          |
| stage1 | 13975(-1361,↓8.9%) | 506(↓5.3%)  |
| stage2 | 14005(-1331,8.7↓%) | 566 (↓6.2%) |
"""


def test_a_change_beside_a_value_is_against_the_row_that_states_none(refresh: Any) -> None:
    answer, _ = refresh(CHANGES, "--check", "--format", "json")
    cells = [
        (cell["line"], cell["published"], cell["text"], cell["verdict"]) for cell in answer.data["results"]["cells"]
    ]
    assert cells == [
        (4, "1361", "1361", "rounded"),
        (4, "8.9", "8.9", "rounded"),
        (4, "5.3", "5.1", "wrong"),
        (5, "1331", "1331", "rounded"),
        (5, "8.7", "8.7", "rounded"),
        (5, "6.2", "6.2", "wrong"),
    ]


def test_a_figure_that_follows_from_a_time_before_it_was_rounded_is_never_rewritten(refresh: Any) -> None:
    text = TABLE.replace(
        "| 52B  |  1 | 16 | 256 |   4 | 1024 | 137s  |   46.7", "| 52B  |  1 | 16 | 256 |   4 | 1024 | 13s   |  505.0"
    )
    answer, written = refresh(text, "--format", "json")
    assert by_row(answer)[5] == ("505.0", "524.3", "from unrounded inputs")  # 13.5 s gives 504.9
    assert b"505.0" in written
