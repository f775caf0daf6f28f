"""`perfscope report refresh`: cells follow from their rows, and nothing else in the file changes."""

from __future__ import annotations

import re
import stat
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from perfscope.sources.published.headings import describe_columns
from perfscope.sources.published.markdown import Cell, parse_markdown, split_lines
from perfscope.tables.published import Quantity, Span
from tests.commands.report_cli import Run, run

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


@pytest.fixture
def refresh(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> Any:
    def call(text: str | bytes, *options: str) -> tuple[Run, bytes]:
        path = tmp_path / "report.md"
        path.write_bytes(text if isinstance(text, bytes) else text.encode())
        return run(capsys, "report", "refresh", path, *options), path.read_bytes()

    return call


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


def test_an_empty_cell_that_can_be_computed_is_filled_and_keeps_its_width(refresh: Any) -> None:
    answer, after = refresh(TABLE.replace("46.7", "    "))
    assert "| 137s  |   49.7 | a" in after.decode()
    assert "missing" in answer.out


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
    reasons = [cell["why"] for cell in answer.data["results"]["cells"] if cell["why"]]
    assert reasons == ["it is the difference over the new value, not over the old", "the sign is the other one"]


def test_a_figure_that_follows_from_a_time_before_it_was_rounded_is_told_from_a_wrong_one(refresh: Any) -> None:
    text = TABLE.replace(
        "| 52B  |  1 | 16 | 256 |   4 | 1024 | 137s  |   46.7", "| 52B  |  1 | 16 | 256 |   4 | 1024 | 13s   |  505.0"
    )
    answer, _ = refresh(text, "--check", "--format", "json")
    assert by_row(answer)[5] == ("505.0", "524.3", "from unrounded inputs")  # 13.5 s gives 504.9


@pytest.mark.parametrize(
    ("published", "why"),
    [
        ("37.3", "3 passes instead of 4 give it"),
        ("53.4", "a size in units of 2**30 gives it"),
        ("46.7", "it needs a step time of 145.9 s"),
    ],
)
def test_a_wrong_cell_says_what_would_explain_it(refresh: Any, published: str, why: str) -> None:
    answer, _ = refresh(TABLE.replace("46.7", published), "--check", "--format", "json")
    assert [cell["why"] for cell in answer.data["results"]["cells"] if cell["line"] == 5] == [why]


BAD = {
    "a bar inside a cell": (TABLE.replace("| a     |", "| a | b |"), "the row has 11 cells under 10 headings"),
    "a short row": (TABLE.replace("|   46.7 | a     |", "|"), "the row ends before this column"),
    "a number of three parts": (TABLE.replace("137s", "1.2.3"), "no step time: '1.2.3' is no time"),
    "nan": (TABLE.replace("137s", "nan"), "no step time: 'nan' is no time"),
    "inf": (TABLE.replace("137s", "inf"), "no step time: 'inf' is no time"),
    "an enormous exponent": (TABLE.replace("137s", "1e999999999"), "is no time"),
    "a time of zero": (TABLE.replace("137s", "0s"), "no step time: '0s' is no time"),
    "no unit": (
        TABLE.replace("| 52B  |  1 | 16 | 256 |   4 | 1024 | 137s", "| 52   |  1 | 16 | 256 |   4 | 1024 | 137s"),
        "'52' is no model size",
    ),
    "two columns of one name": (
        TABLE.replace("| Notes |", "| TFlops |"),
        "'TFlops' and 'TFlops' both state TFLOPs per GPU",
    ),
    "nothing but two columns of one name": (
        "| GPUs | TFlops | TFlops |\n| - | - | - |\n| 64 | 52 | 3 |\n",
        "both state TFLOPs per GPU",
    ),
    "merged headings": (TABLE.replace("| ---: | ---: | -: |", "| ---: | ---: |"), "10 headings are above 9 columns"),
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
        (b"", "holds no table"),
        (b"# only text\n", "holds no table"),
        (b"| a |\n| - |\n| 1 |\n", "holds no table"),
        (b"\x7fELF\0\0", "is no text"),
    ],
)
def test_a_file_without_such_a_table_is_one_clear_line(refresh: Any, content: bytes, problem: str) -> None:
    answer, after = refresh(content, "--check")
    assert (answer.code, after) == (1, content)
    assert problem in answer.err
    assert "Traceback" not in answer.err


def test_a_read_only_file_is_not_replaced(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "report.md"
    path.write_text(TABLE)
    path.chmod(0o444)
    answer = run(capsys, "report", "refresh", path)
    assert answer.code == 1
    assert "is read-only" in answer.err
    assert path.read_text() == TABLE
    assert [entry.name for entry in tmp_path.iterdir()] == ["report.md"]


def test_a_link_and_the_mode_of_a_file_survive(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path, link = tmp_path / "report.md", tmp_path / "link.md"
    path.write_text(TABLE)
    path.chmod(0o640)
    link.symlink_to(path)
    assert run(capsys, "report", "refresh", link).code == 0
    assert link.is_symlink()
    assert "49.7" in path.read_text()
    assert stat.S_IMODE(path.stat().st_mode) == 0o640


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
    from perfscope.analyzers.published.check import check_tables
    from perfscope.regenerate.refresh import replace_cells
    from perfscope.sources.published.tables import read_table
    from perfscope.tables.published import Constant

    head = "| GPUs | Size | GBS | Speed | TFlops | Notes |\n| --- | --- | --- | --- | --- | --- |\n"
    text = head + "".join(f"| {g} | {s}B | {b} | {t}s | {old / 10} | x |\n" for g, s, b, t, old in table)
    document = parse_markdown(text, "t.md")
    published = read_table(document.grids[0], {Quantity.SEQ_LEN: Constant(1024, "test")}, {})
    assert published is not None
    after = replace_cells(document, check_tables([published]).differences)
    for ours, theirs in zip(after.splitlines(), map(one_liner, text.splitlines()), strict=True):
        assert ours.split() == theirs.split() or halfway(ours)


def halfway(line: str) -> bool:
    """A value exactly between two decimals: printf rounds the nearest binary fraction, we the exact one."""
    gpus, size, batch, speed = (cell.strip(" Bs") for cell in line.split("|")[1:5])
    exact = int(size) * 8 * 1024 * int(batch) * 10 / (float(speed) * int(gpus) * 1e3)
    return abs(exact % 1 - 0.5) < 1e-6


@settings(max_examples=100, deadline=None)
@given(st.text(alphabet=st.sampled_from("ab|\\ \r\n\x0b\x0c\u2028>-"), max_size=80))
def test_lines_join_to_the_text_whatever_they_end_with(text: str) -> None:
    assert "".join(split_lines(text)) == text
    parse_markdown(text, "any.md")


HEADINGS = {
    "GPUs": Quantity.GPUS,
    "gpu_num": Quantity.GPUS,
    "device num": Quantity.GPUS,
    "gpu_num_per_node": Quantity.GPUS_PER_NODE,
    "num_nodes": Quantity.NODES,
    "Size": Quantity.PARAMETERS,
    "Number of parameters (billion)": Quantity.PARAMETERS,
    "Glob-BS": Quantity.GLOBAL_BATCH,
    "global batch size": Quantity.GLOBAL_BATCH,
    "Mic-BS": Quantity.MICRO_BATCH,
    "batch_size_per_device": Quantity.MICRO_BATCH,
    "PP Chunks": Quantity.ACCUMULATION,
    "num_accumulation_steps": Quantity.ACCUMULATION,
    "tensor_model_parallel_size": Quantity.TENSOR_PARALLEL,
    "TFlops": Quantity.TFLOPS,
    "TFLOP/s/GPU": Quantity.TFLOPS,
    "Achieved teraFLOP/s per GPU": Quantity.TFLOPS,
    "Achieved aggregate petaFLOP/s": Quantity.AGGREGATE_PFLOPS,
    "Percentage of theoretical peak FLOP/s": Quantity.PEAK_FRACTION,
    "samples/s(PyTorch)": Quantity.RATE,
    "throuthput(sample/sec)": Quantity.RATE,
    "tokens/s": Quantity.TOKEN_RATE,
    "tokens/s/GPU": None,
    "Speed-up": Quantity.SPEEDUP,
    "latency(ms)": Quantity.STEP_TIME,
    "Time per iteration (s)": Quantity.STEP_TIME,
    "GPU M": None,
    "gpu_mem(mB)": None,
    "gpu_util(%)": None,
    "[**GPUs**](x.md)": Quantity.GPUS,
    "Notes": None,
}


@pytest.mark.parametrize("heading", HEADINGS)
def test_headings_mean_what_people_write(heading: str) -> None:
    sizes = [[Cell("52B", Span(1, 0, 3))]]
    assert describe_columns([heading], sizes)[0].quantity is HEADINGS[heading]


def test_a_column_of_model_names_is_no_column_of_sizes() -> None:
    assert describe_columns(["Model"], [[Cell("bert", Span(1, 0, 4))]])[0].quantity is None


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
    assert by_row(answer)[7] == ("54.5", "53.2", "wrong")
    assert by_row(answer)[16] == ("46.52", "46.52", "rounded")
    assert answer.code == 3


def test_size_and_batch_may_be_options(refresh: Any) -> None:
    bare = "\n".join(line for line in NODES.splitlines() if not line.startswith(("BS=", "`")))
    answer, _ = refresh(bare, "--check", "--format", "json")
    assert "no column states the parameters" in answer.out
    options = ("--size", "104B", "--gbs", "1024", "--seq-len", "2048", "--checkpointing", "full")
    answer, _ = refresh(bare, "--check", "--format", "json", *options)
    assert [text for _, text, _ in by_row(answer).values()] == ["53.2", "23.26"]


def test_headings_over_several_rows_are_one(refresh: Any) -> None:
    text = """\
|       |      |        |        |
| ----: | ---: | -----: | -----: |
| Model | GPUs | TFlops | PFlops |
| size  |      |   /GPU | Aggreg |
| 1.7B  |   32 |    137 |    4.4 |
| 18B   |  256 |    135 |   43.6 |
"""
    _answer, after = refresh(text)
    assert after.decode() == text.replace("43.6", "34.6")


def test_a_table_in_html_is_named(refresh: Any) -> None:
    answer, _ = refresh("<table><tr><td colspan=2>TFLOPs</td></tr></table>\n")
    assert answer.code == 1
    assert "line 1: a table in HTML is not read" in answer.err


def test_a_table_of_another_convention_is_doubted_as_a_whole(refresh: Any) -> None:
    text = "| GPUs | Size | GBS | Speed | TFlops |\n| -: | -: | -: | -: | -: |\n" + "".join(
        f"| 64 | 52B | 1024 | {speed}s | {53.66738 * 127 / speed * 0.97:.2f} |\n" for speed in (127, 137, 147, 157)
    )
    answer, _ = refresh(text, "--check")
    assert "4 of 4 TFLOPs are off by -3.0% to -3.0%: they may follow another convention, or a log" in answer.out
    assert "another convention" not in refresh(TABLE, "--check")[0].out


def test_constants_are_listed_in_one_order(refresh: Any) -> None:
    answer, _ = refresh(NODES, "--check", "--format", "json")
    kinds = [list(dict.fromkeys(entry["quantity"] for entry in answer.data["constants"]))]
    assert kinds == [["sequence length", "passes", "parameters", "global batch size"]]


def test_digits_before_an_exponent_are_digits_of_the_number(refresh: Any) -> None:
    answer, _ = refresh(TABLE.replace("   46.7 | a", " 4.97e1 | a"), "--check", "--format", "json")
    assert by_row(answer)[5] == ("4.97e1", "49.7", "rounded")


def test_a_row_with_too_many_cells_is_named_by_its_first(refresh: Any) -> None:
    answer, _ = refresh(TABLE.replace("| a     |", "| a | b |"), "--check", "--format", "json")
    assert answer.data["results"]["not_recomputed"][0]["row"] == "64 52B 1 16"
