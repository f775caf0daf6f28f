"""Rows of very many ranks that lie packed are the rows that went in, whatever becomes of their file."""

from __future__ import annotations

import errno
import os
import pickle
import random
import tempfile
import tracemalloc
from collections.abc import Iterator

import pytest

from perfscope.constants import KIB, MANY_RANKS
from perfscope.packed import PackedRows, pack, pack_at, pack_in_order, pack_names

MANY = 20_000


def rows_of(count: int) -> Iterator[tuple[int, str]]:
    return ((number, f"rank {number} of the job" * 4) for number in range(count))


def test_few_rows_are_a_tuple() -> None:
    assert pack(rows_of(MANY_RANKS)) == tuple(rows_of(MANY_RANKS))
    assert isinstance(pack(rows_of(MANY_RANKS + 1)), PackedRows)


@pytest.mark.parametrize("count", [MANY_RANKS + 1, 128 * 5, MANY])
def test_packed_rows_are_those_that_went_in(count: int) -> None:
    packed, rows = pack(rows_of(count)), list(rows_of(count))
    assert list(packed) == rows
    assert len(packed) == count
    for place in (0, 127, 128, count - 1, -1, -count):
        assert packed[place] == rows[place]
    assert tuple(packed[count - 3 :]) == tuple(rows[count - 3 :])
    assert list(pickle.loads(pickle.dumps(packed))) == rows
    with pytest.raises(IndexError):
        packed[count]


def test_rows_are_sorted_as_python_sorts_them() -> None:
    rows = list(rows_of(MANY))
    random.Random(1).shuffle(rows)
    for key in (lambda row: row[0], lambda row: row[0] % 7, lambda row: -row[0]):
        assert list(pack_in_order(rows, key)) == sorted(rows, key=key)


def test_rows_in_order_are_packed_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("perfscope.packed._rows_at", lambda *_: pytest.fail("they are in order"))
    assert list(pack_in_order(rows_of(MANY), lambda row: row[0])) == list(rows_of(MANY))


def test_rows_at_places_stand_in_their_order() -> None:
    places = list(range(MANY))
    random.Random(2).shuffle(places)
    assert [row[0] for row in pack_at(pack(rows_of(MANY)), places)] == places


def test_memory_does_not_grow_with_the_rows() -> None:
    held = []
    for count in (MANY, 4 * MANY):
        tracemalloc.start()
        packed = pack(rows_of(count))
        assert sum(row[0] for row in packed) == count * (count - 1) // 2
        held.append(tracemalloc.get_traced_memory()[1])
        tracemalloc.stop()
    assert held[1] < 1.2 * held[0] + 64 * KIB


@pytest.mark.parametrize("written", [0, 300 * KIB])
def test_rows_stay_in_memory_where_the_disk_is_full(monkeypatch: pytest.MonkeyPatch, written: int) -> None:
    write, left = os.pwrite, [written]

    def write_as_far_as_it_goes(descriptor: int, content: bytes, offset: int) -> int:
        if not left[0]:
            raise OSError(errno.ENOSPC, "no space left on device")
        some = content[: left[0]]
        left[0] -= len(some)
        return write(descriptor, some, offset)

    monkeypatch.setattr(os, "pwrite", write_as_far_as_it_goes)
    assert list(pack(rows_of(MANY))) == list(rows_of(MANY))


def test_rows_stay_in_memory_where_no_file_can_be_made(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(**_: object) -> None:
        raise OSError(errno.EROFS, "read-only file system")

    monkeypatch.setattr(tempfile, "mkstemp", refuse)
    assert list(pack(rows_of(MANY))) == list(rows_of(MANY))


def test_packed_names_are_found_in_any_order_and_no_others() -> None:
    names = [f"rank{number:05d}" for number in range(0, 3000, 2)]
    packed = pack_names(names)
    looked_for = [f"rank{number:05d}" for number in range(3000)]
    for order in (looked_for, looked_for[::-1], looked_for[1::7] + looked_for[::5]):
        assert [name in packed for name in order] == [name in set(names) for name in order]
    assert len(packed) == len(names)
    assert "" not in packed
    assert "z" not in packed


def test_integers_are_put_in_order_as_other_keys_are() -> None:
    numbers = [(number * 7919) % 1013 - 500 for number in range(2000)]
    in_order = sorted(enumerate(numbers), key=lambda pair: pair[1])
    assert list(pack_in_order(enumerate(numbers), lambda pair: pair[1])) == in_order
    assert list(pack_in_order(enumerate(numbers), lambda pair: (pair[1],))) == in_order
    assert list(pack_in_order(enumerate([*numbers, 10**30]), lambda pair: pair[1])) == [*in_order, (2000, 10**30)]
