"""`perfscope report refresh`: sequence length, size and layout from options, columns and the text."""

from __future__ import annotations

from typing import Any

from tests.commands.published_tables import TABLE, by_row


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
