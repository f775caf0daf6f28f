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
from tests.commands.published_tables import TABLE, by_row


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
