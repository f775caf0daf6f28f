"""Splits text in which each line comes once for each rank: such lines are found by one pattern, and split once."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import replace
from functools import lru_cache
from itertools import accumulate

import numpy as np

from perfscope.sources.joblog.splitting.rank_lines import RankLines
from perfscope.sources.joblog.splitting.split_block import SplitBlock, Splitter, Text
from perfscope.sources.joblog.text.blocks import to_plain_text
from perfscope.sources.joblog.text.line_fields import LABEL, parse_label
from perfscope.tables.columns import Bool

_LABELS = re.compile(rb"^" + LABEL, re.MULTILINE)
_MOST_RANKS = 256
_FEWEST_LINES = 16
_MOST_PIECES = 8
_SMALL = 1 << 13  # a piece between such lines that is not worth a splitter


def split_text(
    split: Splitter, split_rank: Splitter | None, text: Text, length: int, scratch: Bool
) -> list[SplitBlock | bytes]:
    """Split a block; what all ranks print in it is split as the first one prints it, by ``split_rank``."""
    pieces = _pieces_of_ranks(text, length) if split_rank else None
    if pieces is None or split_rank is None:
        return [split(text, length, scratch) or bytes(text[:length])]
    return [_split_piece(split, split_rank, piece) for piece in pieces]


def _split_piece(split: Splitter, split_rank: Splitter, piece: RankLines | bytes) -> SplitBlock | bytes:
    if isinstance(piece, RankLines):
        text = piece.of_first_rank
        block = split_rank(text, len(text), np.empty(len(text), np.bool_))
        if block is not None and block.has_record_lines:
            return _printed_by_all(block, piece)
        piece = piece.of_all_ranks
    block = split(piece, len(piece), np.empty(len(piece), np.bool_)) if len(piece) > _SMALL else None
    return block or piece


def _printed_by_all(block: SplitBlock, ranks: RankLines) -> SplitBlock:
    """The block of what the first rank prints as that of all ranks."""
    ends = [*block.rest_start[1:].tolist(), len(block.rest)]
    rest = [ranks.of_same_ranks(block.rest[start:end]) for start, end in zip(block.rest_start, ends, strict=True)]
    starts = np.asarray([0, *accumulate(map(len, rest))][: len(rest)], np.int64)
    return replace(block, rest=b"".join(rest), rest_start=starts, ranks=ranks)


def _pieces_of_ranks(text: Text, length: int) -> list[RankLines | bytes] | None:
    """A block as lines that all ranks print and the text between; None where most are no such lines."""
    if _labels_behind(text, length // 2, length) is None:
        return None
    plain = to_plain_text(bytes(text[:length]))
    labels = _labels_behind(plain, len(plain) // 2, len(plain))
    if labels is None:
        return None
    pieces = list(_take_apart(plain, labels))
    of_ranks = sum(len(piece) for piece in pieces if isinstance(piece, RankLines))
    return pieces if 2 * of_ranks > len(plain) else None


def _labels_behind(text: Text, offset: int, end: int) -> tuple[bytes, ...] | None:
    """The labels of the lines that equal each other behind a place in a text; None where the next lines do not."""
    offset = text.find(b"\n", offset, end) + 1
    different = 0
    labels: list[bytes] = []
    before: bytes | None = None
    for _ in range(2 * _MOST_RANKS):
        stop = text.find(b"\n", offset, end)
        line = bytes(text[offset:stop])
        label = parse_label(line, 0) or b""
        if stop < 0 or not line.startswith(label):
            break
        bare = line[len(label) :]
        if bare != before:
            if different > 1:
                kinds = {re.sub(rb"\d+", b"0", label) for label in labels}
                return tuple(labels) if len(labels) > 1 and len(kinds) == 1 else None
            different, labels, before = different + 1, [], bare
        labels.append(label)
        offset = stop + 1
    return None


def _take_apart(text: bytes, labels: tuple[bytes, ...]) -> Iterator[RankLines | bytes]:
    """The lines that ranks of these labels print, and the text between."""
    run, runs = _patterns_of(labels)
    done = offset = 0
    for _ in range(_MOST_PIECES):
        found = run.search(text, offset)
        if found is None:
            break
        lines = runs.findall(text, found.start())
        part = RankLines(labels, lines if lines[-1] else lines[:-1])
        offset = found.start() + len(part)
        if len(part.lines) >= _FEWEST_LINES and _have_labels(part):
            if found.start() > done:
                yield text[done : found.start()]
            yield part
            done = offset
    if done < len(text):
        yield text[done:]


@lru_cache(maxsize=16)
def _patterns_of(labels: tuple[bytes, ...]) -> tuple[re.Pattern[bytes], re.Pattern[bytes]]:
    """Finds a line that all ranks print; and all that follow each other, with an empty one for what follows them."""
    further = b"".join(re.escape(label) + rb"(?P=line)" for label in labels[1:])
    run = re.escape(labels[0]) + rb"(?P<line>[^\n]*\n)" + further
    return re.compile(rb"^" + run, re.MULTILINE), re.compile(run + rb"|(?s:.+)")


def _have_labels(ranks: RankLines) -> bool:
    """Whether the lines have just these labels: what is one may depend on the text behind it."""
    return _LABELS.findall(ranks.of_first_rank) == [ranks.labels[0]] * len(ranks.lines) * any(ranks.labels)
