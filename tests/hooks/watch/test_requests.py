"""Requests appear whole, are seen once, and malformed ones are named in one line."""

from __future__ import annotations

from pathlib import Path

import pytest

from perfscope.hooks.watch.watch import ControlFolder, Progress, Stall, publish
from perfscope.wire.requests import WindowRequest, first_step

REQUEST = WindowRequest(100, 102, 1, ranks=(0, 3), stack=True)


def test_a_request_is_read_as_it_was_written() -> None:
    assert WindowRequest.from_json(REQUEST.to_json()) == REQUEST


@pytest.mark.parametrize(
    ("content", "problem"),
    [
        (b'{"first": 1', "not JSON"),
        (b"[]", "not a JSON object"),
        (b'{"first": 10, "last": 9, "wall_ns": 1}', "10-9 cannot be profiled"),
        (b'{"first": 1, "last": 3, "wall_ns": 1}', "1-3 cannot be profiled"),
        (b'{"first": 10, "last": 9999999, "wall_ns": 1}', "cannot be profiled"),
        (b'{"first": "10", "last": 12, "wall_ns": 1}', "cannot be profiled"),
        (b'{"first": 10, "last": 12, "wall_ns": 1, "stack": 1}', "stack is neither"),
        (b'{"first": 10, "last": 12, "wall_ns": 1, "ranks": "0"}', "ranks is not"),
        (b'{"first": 10, "last": 12, "wall_ns": 1, "run": "rm"}', "unknown fields: run"),
    ],
)
def test_a_malformed_request_is_refused_with_a_reason(content: bytes, problem: str) -> None:
    with pytest.raises(ValueError, match=problem):
        WindowRequest.from_json(content)


def test_each_file_is_new_once_and_hidden_ones_are_not_seen(tmp_path: Path) -> None:
    folder = ControlFolder(str(tmp_path))
    (tmp_path / ".window-0001.json.tmp").write_bytes(b"half")
    assert folder.find_new() == []
    assert publish(str(tmp_path), "window-0001.json", b"{}")
    assert folder.find_new() == ["window-0001.json"]
    assert folder.find_new() == []
    assert not publish(str(tmp_path), "window-0001.json", b"other")
    assert folder.read("window-0001.json") == b"{}"


@pytest.mark.parametrize("step_ns", [None, 1e6, 1e8, 1e9, 60e9])
def test_a_window_is_far_enough_ahead_for_three_looks(step_ns: float | None) -> None:
    ahead = first_step(1000, step_ns) - 1000
    assert ahead >= 5
    assert step_ns is None or ahead * step_ns >= 8e9


def test_of_a_large_file_only_the_beginning_is_read(tmp_path: Path) -> None:
    (tmp_path / "window-0001.json").write_bytes(b" " * 100_000)
    assert len(ControlFolder(str(tmp_path)).read("window-0001.json")) == 65536


S = 10**9


def train(shortest_ns: int, step_ns: int, begin_ns: int = 0) -> tuple[Progress, int]:
    """Thirty steps that end one by one, each with a look; also returns when the last one ended."""
    progress = Progress(factor=20, shortest_ns=shortest_ns, now_ns=begin_ns)
    now_ns = begin_ns
    for step in range(1, 31):
        now_ns += step_ns
        progress.advance(step, now_ns, now_ns)
    return progress, now_ns


@pytest.mark.parametrize(("shortest_ns", "step_ns", "limit_ns"), [(S, S // 2, 10 * S), (60 * S, S // 100, 60 * S)])
def test_no_step_for_a_limit_is_a_stall_that_is_noticed_once(shortest_ns: int, step_ns: int, limit_ns: int) -> None:
    progress, now_ns = train(shortest_ns, step_ns)
    assert progress.find_stall(30, now_ns + limit_ns - 1) is None
    assert progress.find_stall(30, now_ns + limit_ns) == Stall(limit_ns, limit_ns)
    assert progress.find_stall(30, now_ns + limit_ns + S) is None


def test_a_step_ends_a_stall_and_neither_it_nor_one_in_a_window_is_a_usual_one() -> None:
    progress, now_ns = train(S, S // 2)
    assert progress.find_stall(30, now_ns + 100 * S) is not None
    assert progress.advance(31, now_ns + 100 * S, now_ns + 100 * S)
    for step in range(32, 90):
        assert not progress.advance(step, now_ns + step * 100 * S, now_ns + step * 100 * S, is_disturbed=True)
    assert progress.limit_ns == 10 * S


def test_a_clock_that_jumps_back_is_no_stall() -> None:
    progress, now_ns = train(S, S // 2, begin_ns=100 * S)
    assert progress.find_stall(30, now_ns - 50 * S) is None
