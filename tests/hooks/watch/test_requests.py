"""Requests appear whole, are seen once, and malformed ones are named in one line."""

from __future__ import annotations

from pathlib import Path

import pytest

from perfscope.hooks.watch.watch import ControlFolder, publish
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
