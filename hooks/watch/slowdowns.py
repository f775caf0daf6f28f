"""Asks for a profiler window where steps have become slower: a few times a day, one rank for all."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from perfscope.hooks.watch.control import publish, was_published_lately
from perfscope.wire import requests

if TYPE_CHECKING:
    from perfscope.hooks.config import Config

_WINDOW_STEPS = 3


def ask_for_window(config: Config, control_folder: str, steps: int, step_ns: float, ratio: float) -> bool:
    """Ask all ranks for a window; False where today's windows are used up, or another rank was quicker.

    Args:
        config: How many windows a day.
        control_folder: Where requests lie.
        steps: Completed steps.
        step_ns: The usual time of a step.
        ratio: How many times longer steps have become.

    Raises:
        OSError: The folder cannot be written to.
    """
    first = requests.first_step(steps, step_ns)
    reason = f"steps take {ratio:.2f} times as long as usual"
    request = requests.WindowRequest(first, first + _WINDOW_STEPS - 1, time.time_ns(), reason=reason)
    day = time.strftime("%Y%m%d")
    for number in range(1, config.slowdown_windows + 1):
        name = f"{requests.ANOMALY_PREFIX}{day}-{number}.json"
        if publish(control_folder, name, request.to_json()):
            return True
        if was_published_lately(control_folder, name):
            return False
    return False
