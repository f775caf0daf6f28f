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
    ("known", "operators", "light"),
    [
        (
            ("trace_only", "enable_cuda_sync_events"),
            {"trace_only": True, "enable_cuda_sync_events": True},
            {"trace_only": True},
        ),
        (("trace_only",), {"trace_only": True}, {"trace_only": True}),
        (("enable_cuda_sync_events",), {"enable_cuda_sync_events": True}, None),
        ((), None, None),
    ],
)
def test_waits_are_recorded_with_operators_where_torch_can(
    known: tuple[str, ...], operators: object, light: object, tmp_path: Path
) -> None:
    config = Config(str(tmp_path), ())
    torch = torch_that_knows(*known)
    assert _make_config(torch, config, is_light=False) == operators
    assert _make_config(torch, config, is_light=True) == light
