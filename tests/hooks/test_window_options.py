"""What a window asks torch.profiler for, with this torch and with older ones."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace

import pytest

from perfscope.hooks.config import Config
from perfscope.hooks.profiler.window import _make_config


def torch_that_knows(*options: str) -> SimpleNamespace:
    def experimental_config(**given: bool) -> dict[str, bool]:
        if set(given) - set(options):
            raise TypeError("unexpected keyword")
        return given

    return SimpleNamespace(_C=SimpleNamespace(_profiler=SimpleNamespace(_ExperimentalConfig=experimental_config)))


@pytest.mark.parametrize(
    ("known", "options"),
    [
        (("trace_only", "enable_cuda_sync_events"), {"trace_only": True}),
        (("trace_only",), {"trace_only": True}),
        (("enable_cuda_sync_events",), None),
        ((), None),
    ],
)
def test_a_window_records_nothing_but_what_a_trace_needs(
    known: tuple[str, ...], options: object, tmp_path: Path
) -> None:
    """Waits are not recorded: they slow the host, and a replay infers the same."""
    assert _make_config(torch_that_knows(*known), Config(str(tmp_path), ())) == options
