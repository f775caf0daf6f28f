"""`perfscope report refresh`: recomputed cells are replaced, and no other byte of the file changes."""

from __future__ import annotations

import re
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from perfscope.regenerate.published import check_tables
from perfscope.regenerate.refresh import replace_cells
from perfscope.sources.published.markdown import parse_markdown
from perfscope.sources.published.tables import read_table
from perfscope.tables.published import Constant, Quantity
from tests.commands.report_cli import Run

TABLE = """\
# Runs

| GPUs | Size | DP | PP | GAS | MBS |  GBS | Speed | TFlops | Notes |
| ---: | ---: | -: | -: | --: | --: | ---: | ----: | -----: | ----: |
|   64 | 52B  |  1 | 16 | 256 |   4 | 1024 | 137s  |   46.7 | a     |
|   64 | 52B  |  1 | 16 | 256 |   4 | 1024 | 126s  |   54.1 | b     |
|      |      |    |    |     |     |      |       |        |       |
|   64 | 52B  |  2 |  8 | 256 |   3 | 1536 | 208   |   49.1 | c     |
|   16 | 7.5B |  1 |  4 |   4 |   1 |    4 | 0.661s |  23.2 | d     |
|   64 | 52B  |  1 | 16 | 256 |   8 | 2048 | OOM   |        | e     |

Sequence length is 1024, `TP=4` in all of them.
"""


def by_row(answer: Run, column: str = "TFlops") -> dict[int, tuple[str, str, str]]:
    cells = answer.data["results"]["cells"]
    return {
        cell["line"]: (cell["published"], cell["text"], cell["verdict"]) for cell in cells if cell["column"] == column
    }


def test_a_check_names_each_cell_that_differs_and_ends_with_3(refresh: Any) -> None:
    answer, after = refresh(TABLE, "--check", "--format", "json")
    assert answer.code == 3
    assert after == TABLE.encode()
    assert by_row(answer) == {
        5: ("46.7", "49.7", "wrong"),
        6: ("54.1", "54.1", "rounded"),
        8: ("49.1", "49.2", "truncated"),
        9: ("23.2", "23.2", "rounded"),
    }
    exact = {cell["line"]: cell["recomputed"] for cell in answer.data["results"]["cells"]}
    assert exact[5] == pytest.approx(52 * 4 * 2 * 1024 * 1024 / (137 * 64 * 1000), rel=1e-12)
    assert round(exact[5], 5) == 49.74996


def test_refresh_changes_the_cells_and_no_other_byte(refresh: Any) -> None:
    answer, after = refresh(TABLE)
    assert answer.code == 0
    assert after == TABLE.replace("46.7", "49.7").replace("49.1", "49.2").encode()
    again, same = refresh(after, "--check")
    assert (again.code, same) == (0, after)


@pytest.mark.parametrize("end", ["\n", "\r\n"])
def test_line_ends_bad_utf8_and_a_missing_last_newline_survive(refresh: Any, end: str) -> None:
    content = TABLE.replace("\n", end).encode()[: -len(end)] + b" \xff\xfe caf\xe9"
    answer, after = refresh(content)
    assert answer.code == 0
    assert after == content.replace(b"46.7", b"49.7").replace(b"49.1", b"49.2")


def test_an_empty_cell_that_can_be_computed_is_filled_and_keeps_its_width(refresh: Any) -> None:
    answer, after = refresh(TABLE.replace("46.7", "    "))
    assert "| 137s  |   49.7 | a" in after.decode()
    assert "missing" in answer.out


BAD = {
    "a bar inside a cell": (TABLE.replace("| a     |", "| a | b |"), "the row has 11 cells under 10 headings"),
    "a short row": (TABLE.replace("|   46.7 | a     |", "|"), "the row ends before this column"),
    "a number of three parts": (TABLE.replace("137s", "1.2.3"), "no step time: '1.2.3' is not a valid step time"),
    "an enormous exponent": (TABLE.replace("137s", "1e999999999"), "is not a valid step time"),
    "a time of zero": (TABLE.replace("137s", "0s"), "no step time: '0s' is not a valid step time"),
    "no unit": (
        TABLE.replace("| 52B  |  1 | 16 | 256 |   4 | 1024 | 137s", "| 52   |  1 | 16 | 256 |   4 | 1024 | 137s"),
        "'52' is not a valid parameters",
    ),
    "two columns of one name": (
        TABLE.replace("| Notes |", "| TFlops |"),
        "'TFlops' and 'TFlops' both state TFLOPs per GPU",
    ),
    "nothing but two columns of one name": (
        "| GPUs | TFlops | TFlops |\n| - | - | - |\n| 64 | 52 | 3 |\n",
        "both state TFLOPs per GPU",
    ),
}


@pytest.mark.parametrize("case", BAD)
def test_what_cannot_be_read_is_named_and_left_alone(refresh: Any, case: str) -> None:
    text, reason = BAD[case]
    answer, after = refresh(text)
    assert reason in answer.out + answer.err
    assert [line for line in after.decode().splitlines() if line.endswith(("| a     |", "| a | b |"))] == [
        line for line in text.splitlines() if line.endswith(("| a     |", "| a | b |"))
    ]
    assert "Traceback" not in answer.err


@pytest.mark.parametrize(
    ("content", "problem"),
    [
        (b"", "contains no table"),
        (b"# only text\n", "contains no table"),
        (b"| a |\n| - |\n| 1 |\n", "contains no table"),
        (b"\x7fELF\0\0", "is not text"),
    ],
)
def test_a_file_without_such_a_table_is_one_clear_line(refresh: Any, content: bytes, problem: str) -> None:
    answer, after = refresh(content, "--check")
    assert (answer.code, after) == (1, content)
    assert problem in answer.err
    assert "Traceback" not in answer.err


def test_tables_in_code_in_comments_and_in_generated_blocks_are_left_alone(refresh: Any) -> None:
    table = TABLE.partition("\n\n")[2].rpartition("\n\n")[0]
    block = f"<!-- perfscope: table x.csv -->\n\n{table}\n\n<!-- /perfscope -->\n"
    hidden = f"```\n{table}\n```\n\n<!--\n{table}\n-->\n\n{block}"
    answer, after = refresh(TABLE + "\n" + hidden)
    assert answer.code == 0
    assert after.decode().endswith(hidden)
    assert after.decode().startswith(TABLE.replace("46.7", "49.7").replace("49.1", "49.2"))


def test_a_table_inside_a_list_or_a_quote_is_refreshed_in_its_place(refresh: Any) -> None:
    table = TABLE.partition("\n\n")[2].rpartition("\n\n")[0]
    for prefix in ("> ", "  "):
        text = (
            ("- item\n\n" if prefix == "  " else "")
            + "".join(prefix + line for line in table.splitlines(keepends=True))
            + "\n"
        )
        _, after = refresh(text)
        assert after.decode() == text.replace("46.7", "49.7").replace("49.1", "49.2")


# The one-liner that the BigScience report gives for its own tables: GPUs and size first, batch size and time before
# the TFLOPs. It cannot read 7.5B, times without s, or a first column of ids.
_ONE_LINER = re.compile(r"^(\| +(\d+) +\| +(\d+)B.*? +(\d+) +\| +([\d.]+)s) +\| +[\d.]+ +(.*?)$")


def one_liner(line: str) -> str:
    match = _ONE_LINER.match(line)
    if match is None:
        return line
    tflops = int(match[3]) * 4 * 2 * 1024 * int(match[4]) / (float(match[5]) * int(match[2]) * 1e3)
    return f"{match[1]} | {tflops:.1f} {match[6]}"


rows = st.tuples(
    st.sampled_from([16, 32, 64, 128, 256]),
    st.integers(1, 530),
    st.integers(1, 4096),
    st.integers(1, 99999).map(lambda tenths: f"{tenths / 10:g}"),
    st.integers(0, 9999),
)


@settings(max_examples=60, deadline=None)
@given(st.lists(rows, min_size=1, max_size=12))
def test_it_writes_what_the_reports_own_one_liner_writes(table: list[tuple[int, int, int, str, int]]) -> None:
    head = "| GPUs | Size | GBS | Speed | TFlops | Notes |\n| --- | --- | --- | --- | --- | --- |\n"
    text = head + "".join(f"| {g} | {s}B | {b} | {t}s | {old / 10} | x |\n" for g, s, b, t, old in table)
    document = parse_markdown(text, "t.md")
    published = read_table(document.grids[0], {Quantity.SEQ_LEN: Constant(1024, "test")}, {})
    assert published is not None
    after = replace_cells(document, check_tables([published]).differences)
    for ours, theirs in zip(after.splitlines(), map(one_liner, text.splitlines()), strict=True):
        same = [(one, other) for one, other in zip(ours.split("|"), theirs.split("|"), strict=True) if one != other]
        assert all(abs(float(one) - float(other)) < 0.101 for one, other in same)  # printf rounds a binary fraction


def test_a_row_with_too_many_cells_is_named_by_its_first(refresh: Any) -> None:
    answer, _ = refresh(TABLE.replace("| a     |", "| a | b |"), "--check", "--format", "json")
    assert answer.data["results"]["not_recomputed"][0]["row"] == "64 52B 1 16"


def test_the_passes_and_the_sequence_length_come_from_an_option_before_the_text(refresh: Any) -> None:
    answer, _ = refresh(TABLE, "--check", "--format", "json", "--seq-len", "2048", "--checkpointing", "none")
    assert by_row(answer)[5][1] == "74.6"  # 49.74996 x 2 x 3/4


def test_a_sequence_length_that_is_stated_nowhere_is_assumed_and_said(refresh: Any) -> None:
    answer, _ = refresh(TABLE.replace("Sequence length is 1024, ", ""), "--check", "--format", "json")
    assert "sequence length 1024 (tokens)" in answer.data["assumed"]
    assert "sequence length 1024" in answer.err


def test_a_factor_that_the_text_states_counts(refresh: Any) -> None:
    answer, _ = refresh(TABLE + "\nThe factor is 3: nothing is recomputed.\n", "--check", "--format", "json")
    assert by_row(answer)[5][1] == "37.3"  # 49.74996 x 3/4


def test_two_sequence_lengths_in_one_section_are_not_guessed_between(refresh: Any) -> None:
    answer, after = refresh(TABLE + "\nSequence length is 2048.\n")
    assert after.decode() == TABLE + "\nSequence length is 2048.\n"
    assert "the text states the sequence length as 1024 (line 12), 2048 (line 14)" in answer.out


def test_what_one_section_says_does_not_hold_for_the_next(refresh: Any) -> None:
    other = TABLE.replace("# Runs", "# Others").replace("is 1024", "is 2048").replace("TP=4", "no TP")
    answer, _ = refresh(TABLE + other, "--check", "--format", "json")
    assert by_row(answer)[5][1] == "49.7"
    assert by_row(answer)[17][1] == "99.5"
    assert not [one for one in answer.data["results"]["contradictions"] if one["line"] > 12 and "TP" in one["problem"]]


NODES = """\
# Wide

BS=1024, SIZE=104B,

| NNODES | TP | PP | DP | Speed | TFlops |
| -----: | -: | -: | -: | ----: | -----: |
|     32 |  4 | 32 |  1 |   256 |   54.5 |
|     64 |  4 | 64 |  1 |     x |      x |

`$ng=32*4; $sp=256; $ms=104; $gbs=1048; $seqlen=2048; print $ms*4*2*2048*$gbs / ( $sp * $ng * 1e3)`

BS=2048

| NNODES | TP | PP | DP | Speed | TFlops |
| -----: | -: | -: | -: | ----: | -----: |
|     32 |  4 | 32 |  1 |   586 |  46.52 |

`$ms*4*2*2048*$gbs / ( $sp * $ng * 1e3)`
"""


def test_size_and_batch_come_from_the_text_and_gpus_from_the_layout(refresh: Any) -> None:
    answer, _ = refresh(NODES, "--check", "--format", "json")
    # 104 x 4 x 2 x 2048 x 1024 / (256 x 128 x 1000); the text above a table counts before the formula below it.
    assert by_row(answer)[7] == ("54.5", "53.2", "other convention")
    assert by_row(answer)[16] == ("46.52", "46.52", "rounded")
    assert answer.code == 0  # the only figure of its table may follow another definition


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
