"""The last collectives that a rank launched stay in memory that outlives it, and are read as a slow list of them."""

from __future__ import annotations

import os
import random
import resource
from pathlib import Path
from typing import NamedTuple

import pytest

from perfscope.hooks.timers.launched_calls import LaunchedCalls
from perfscope.hooks.watch import coroner
from perfscope.wire import launched_calls
from perfscope.wire.launched_calls import LAUNCHES, MEMORY_NAME, RING, SIZE_BYTES, LaunchedCall, parse_memory

pytestmark = pytest.mark.skipif(not hasattr(os, "memfd_create"), reason="the system has no such memory")


class Group(NamedTuple):
    group_name: str


class Tensor:
    def __init__(self, elements: int) -> None:
        self.elements = elements

    def numel(self) -> int:
        return self.elements


def memories() -> set[int]:
    files = [path for path in Path("/proc/self/fd").iterdir() if path.is_symlink()]
    return {int(path.name) for path in files if str(path.readlink()).startswith(f"/memfd:{MEMORY_NAME}")}


def begun() -> tuple[LaunchedCalls, int]:
    before, calls = memories(), LaunchedCalls()
    calls.begin()
    (descriptor,) = memories() - before
    return calls, descriptor


@pytest.mark.parametrize("count", [0, 1, 40, RING - 1, RING, RING + 1, 3 * RING + 17])
def test_what_is_remembered_is_the_end_of_all_calls_from_the_beginning_of_a_step_on(count: int) -> None:
    source = random.Random(count)
    calls, descriptor = begun()
    slow: list[LaunchedCall | int] = []
    steps, numbers = 0, dict[str, int]()
    for _ in range(count):
        kind = source.randrange(5)
        if kind == 0:
            steps += 1
            calls.end_step()
            slow.append(steps)
        elif kind == 1:
            calls.add_backward()
            slow.append(LaunchedCall(steps + 1, "backward", None, 0))
        else:
            elements, group = source.choice([0, 1, 2**40]), source.choice(["0", "1", "2"])
            tensor = source.choice([Tensor(elements), [Tensor(elements)], [[Tensor(elements), Tensor(7)]]])
            calls.add("allreduce", Group(group), [tensor])
            numbers.setdefault(group, len(numbers))
            slow.append(LaunchedCall(steps + 1, "all_reduce", numbers[group], elements))
    kept = slow[-RING:]
    if count > RING:
        first = next(place for place, call in enumerate(kept) if isinstance(call, int))
        kept = kept[first:]
    expected = tuple(call for call in kept if not isinstance(call, int))
    assert parse_memory(os.pread(descriptor, SIZE_BYTES + 1, 0)) == expected


def test_every_method_that_is_wrapped_has_a_number_and_calls_without_tensors_are_kept() -> None:
    calls, descriptor = begun()
    for name in LAUNCHES:
        calls.add(name, Group("0"), [])
    parsed = parse_memory(os.pread(descriptor, SIZE_BYTES, 0))
    assert [call.elements for call in parsed] == [0] * len(LAUNCHES)
    assert len({call.operation for call in parsed}) > 10


@pytest.mark.parametrize("damaged", [b"", b"x", bytes(SIZE_BYTES - 8), bytes([255]) * (SIZE_BYTES + 8)])
def test_what_is_no_such_memory_holds_no_calls(damaged: bytes) -> None:
    assert parse_memory(damaged) == ()


def test_random_bytes_are_read_without_an_error() -> None:
    assert isinstance(parse_memory(random.Random(3).randbytes(SIZE_BYTES)), tuple)


def test_nothing_is_kept_where_the_script_may_need_every_one_of_its_files(monkeypatch: pytest.MonkeyPatch) -> None:
    before, calls = memories(), LaunchedCalls()
    monkeypatch.setattr(resource, "getrlimit", lambda _: (40, 40))
    calls.begin()
    calls.add("allreduce", Group("0"), [Tensor(1)])
    calls.end_step()
    assert memories() == before


def test_a_forked_child_adds_nothing() -> None:
    calls, descriptor = begun()
    calls.add_backward()
    child = os.fork()
    if not child:
        calls.add("allreduce", Group("0"), [Tensor(1)])
        os._exit(0)
    os.waitpid(child, 0)
    assert [call.operation for call in parse_memory(os.pread(descriptor, SIZE_BYTES, 0))] == ["backward"]


def test_the_process_beside_training_looks_for_memory_of_that_name() -> None:
    assert f"/memfd:{launched_calls.MEMORY_NAME}" == coroner._MEMORY_NAME
