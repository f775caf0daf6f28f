"""No anchor that a block contains is missed, and hardly any other is searched for."""

from __future__ import annotations

import random

from hypothesis import given
from hypothesis import strategies as st

from perfscope.sources.joblog.registry import FORMATS
from perfscope.sources.joblog.text.anchors import AnchorSearch
from tests.conftest import ROOT

ANCHORS = [rule.anchor for log_format in FORMATS for rule in log_format.rules]
SEARCH = AnchorSearch(ANCHORS)


def prose(words: int, seed: int = 1) -> bytes:
    vocabulary = (ROOT / "CONTRIBUTING.md").read_bytes().split()
    draw = random.Random(seed)
    return b" ".join(draw.choice(vocabulary) + draw.choice((b"", b"\n")) for _ in range(words))


def test_an_anchor_in_a_block_is_found_wherever_it_stands() -> None:
    long_text = prose(20_000)
    for index, anchor in enumerate(ANCHORS):
        for text in (anchor, b"x" + anchor + b"\n", long_text + b"17 " + anchor + b"3\n" + long_text):
            assert SEARCH.find(text)[index], anchor


@given(st.binary(max_size=300), st.integers(0, 300), st.integers(0, 12))
def test_any_part_of_any_text_is_found(text: bytes, begin: int, length: int) -> None:
    part = text.replace(b"\n", b" ")[begin : begin + length]
    assert AnchorSearch([part]).find(text.replace(b"\n", b" ")) == [True]


@given(st.binary(max_size=40), st.integers(0, 40), st.integers(0, 12))
def test_any_part_of_a_long_text_is_found(text: bytes, begin: int, length: int) -> None:
    line = text.replace(b"\n", b" ")
    assert AnchorSearch([line[begin : begin + length]]).find(prose(6_000, 2) + line) == [True]


def test_what_a_long_text_lacks_is_not_searched_for() -> None:
    text = prose(20_000)
    found = [anchor for anchor, is_possible in zip(ANCHORS, SEARCH.find(text), strict=True) if is_possible]
    assert all(anchor.translate(None, b"0123456789") in text.translate(None, b"0123456789") for anchor in found)
    assert len(found) < 10


def test_of_random_text_hardly_an_anchor_is_searched_for() -> None:
    """All sequences of three bytes are in it, and a small table is full of those of four."""
    draw = random.Random(1)
    text = bytes(draw.choices(range(32, 127), k=1 << 20))
    searched = [anchor for anchor, is_possible in zip(ANCHORS, SEARCH._mark(text), strict=True) if is_possible]
    assert len(searched) < 20
    assert all(SEARCH._mark(text + anchor)[index] for index, anchor in enumerate(ANCHORS[:5]))
