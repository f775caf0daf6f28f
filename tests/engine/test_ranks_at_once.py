"""Partials of many ranks, read in groups by processes: the answers of one after the other, whatever becomes of them."""

from __future__ import annotations

import os
import pickle
import signal
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from benchmarks import growth
from benchmarks.synthetic_ranks import Made, make_job
from perfscope.engine import ranks_at_once
from perfscope.engine.analysis_report import to_report
from perfscope.engine.execution import Execution
from perfscope.engine.packing import pack, unpack
from perfscope.engine.registry import BUILT_IN
from perfscope.engine.run import Analysis, Plan, analyze
from perfscope.engine.tasks import MeasuredTrace
from perfscope.renderers import Format, render
from perfscope.sources.partials.values import pack_value
from tests.conftest import ROOT
from tests.engine.storing import copy_with_partials

RANKS = 40


@pytest.fixture(scope="module")
def job(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return growth.make(tmp_path_factory.mktemp("ranks") / "job", RANKS)


@cache
def flat(path: Path) -> tuple[str, ...]:
    """The answers without groups."""
    return texts(analyze([path]))


@pytest.fixture
def forked_in(monkeypatch: pytest.MonkeyPatch) -> Callable[[int], None]:
    """Sets how large groups are; the threads of who runs the tests keep nothing from being forked."""
    monkeypatch.setattr(ranks_at_once, "can_fork", lambda: True)
    monkeypatch.setattr(ranks_at_once, "_FEWEST", 2)
    monkeypatch.setattr(ranks_at_once, "_FIRST", 1)

    def in_groups_of(size: int) -> None:
        monkeypatch.setattr(ranks_at_once, "_IN_A_GROUP", size)

    return in_groups_of


def texts(analysis: Analysis) -> tuple[str, ...]:
    return (*(render(to_report(analysis), to) for to in Format), *analysis.notes)


def plan(workers: int, **options: Any) -> Plan:
    return Plan(execution=Execution(workers), **options)


@pytest.mark.parametrize("workers", [1, 2, 3])
@pytest.mark.parametrize("size", [1, 7, 16, 100])
def test_groups_of_any_size_in_any_number_of_processes_give_the_same_bytes(
    job: Path, workers: int, size: int, forked_in: Callable[[int], None]
) -> None:
    expected = flat(job)
    forked_in(size)
    assert texts(analyze([job], plan(workers))) == expected


def let_die(stage: str, name: str, marks: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Let every process but this one die at a stage, and leave a file that says so."""
    parent, whole = os.getpid(), getattr(ranks_at_once, name)

    def mortal(*arguments: Any) -> Any:
        if os.getpid() == parent:
            return whole(*arguments)
        answer = None if stage == "before" else whole(*arguments)
        (marks / f"died{os.getpid()}").touch()
        os.kill(os.getpid(), signal.SIGKILL)
        return answer

    monkeypatch.setattr(ranks_at_once, name, mortal)


@pytest.mark.parametrize(
    ("stage", "name"), [("before", "_take_group"), ("behind", "merge_each"), ("before", "pack"), ("behind", "pack")]
)
def test_what_a_process_that_dies_had_to_answer_is_read_here(
    job: Path, stage: str, name: str, tmp_path: Path, forked_in: Callable[[int], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    expected = flat(job)
    forked_in(7)
    let_die(stage, name, tmp_path, monkeypatch)
    assert texts(analyze([job], plan(2))) == expected
    assert len(list(tmp_path.iterdir())) == -(-(RANKS - 1) // 7)  # all of them


def test_where_nothing_can_be_forked_groups_are_read_here(
    job: Path, forked_in: Callable[[int], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    expected = flat(job)
    forked_in(7)

    def refuse() -> int:
        raise BlockingIOError

    monkeypatch.setattr(os, "fork", refuse)
    assert texts(analyze([job], plan(2))) == expected
    monkeypatch.setattr(ranks_at_once, "can_fork", lambda: False)
    assert texts(analyze([job], plan(2))) == expected


def test_a_file_that_cannot_be_taken_is_told_in_a_group_too(tmp_path: Path, forked_in: Callable[[int], None]) -> None:
    damaged = growth.make(tmp_path / "job", 16)
    for number, path in enumerate(sorted(damaged.iterdir())[3::5]):
        path.write_bytes(path.read_bytes()[: number * 100])
    expected = texts(analyze([damaged]))
    assert "is not whole" in expected[0]
    forked_in(5)
    assert texts(analyze([damaged], plan(2))) == expected


@pytest.mark.parametrize("options", [{}, {"only": frozenset({"breakdown", "kernels"}), "with_operators": True}])
def test_what_partials_do_not_hold_is_measured_beside_groups(
    options: dict[str, Any], tmp_path: Path, forked_in: Callable[[int], None]
) -> None:
    run = copy_with_partials(ROOT / "fixtures" / "runs" / "h200_zero2", tmp_path)
    expected = texts(analyze([run], Plan(is_fresh=True, **options)))
    forked_in(1)
    assert texts(analyze([run], plan(2, **options))) == expected


@cache
def measured() -> tuple[MeasuredTrace, ...]:
    return tuple(Made(make_job(64)))


def test_packed_ranks_come_back_as_they_were() -> None:
    again = unpack(pack(measured()))
    assert isinstance(again, tuple)
    kinds = {analyzer.name: analyzer.partial_kind() for analyzer in BUILT_IN if analyzer.name in measured()[0].partials}
    for before, after in zip(measured(), again, strict=True):
        assert (before.path, before.summary, before.damage) == (after.path, after.summary, after.damage)
        assert before.partials.keys() == after.partials.keys()
        for name, partial in before.partials.items():
            assert pack_value(partial, kinds[name]) == pack_value(after.partials[name], kinds[name])


def test_numbers_that_are_equal_stay_what_they_are() -> None:
    values = [1, 1.0, True, -0.0, 0, np.float32(1), np.array([1]), np.array([1.0]), np.array([[1]]), np.array([-0.0])]
    again = unpack(pack(values))
    assert isinstance(again, list)
    assert [repr(value) for value in again] == [repr(value) for value in values]


def test_equal_arrays_of_ranks_are_one_and_cannot_be_written() -> None:
    again = unpack(pack([np.arange(5), np.arange(5)]))
    assert isinstance(again, list)
    one, other = again
    assert one is other
    with pytest.raises(ValueError, match="read-only"):
        one[0] = 1


def test_packed_ranks_are_half_as_large() -> None:
    packed = sum(map(len, pack(measured())))
    assert packed < sum(len(pickle.dumps(rank)) for rank in measured()) / 2
