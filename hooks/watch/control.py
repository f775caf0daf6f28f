"""The requests to this process in the folder ``RUN/control``, which is looked at every two seconds during training."""

from __future__ import annotations

import os
import time
from typing import TYPE_CHECKING

from perfscope.constants import NS_PER_S
from perfscope.wire import requests

if TYPE_CHECKING:
    from perfscope.hooks.config import Config

#: A file that came in the same tick of the file system's clock as the last look does not change the folder's time.
_COARSEST_CLOCK_NS = 5 * NS_PER_S
_LARGEST_REQUEST_BYTES = 65536
#: The window of a request that is no older may still be open.
_LATELY_S = 120.0
_WINDOW_STEPS = 3


class ControlFolder:
    """The files that have appeared in a folder since the last look; where there is no folder, there are none."""

    def __init__(self, path: str) -> None:
        self.path = path
        self._changed_ns = 0
        self._names: set[str] = set()

    def find_new(self) -> list[str]:
        """Names of the files that are new, in their order; hidden ones are still being written."""
        try:
            changed_ns = os.stat(self.path).st_mtime_ns
        except OSError:
            return []
        if changed_ns == self._changed_ns and abs(time.time_ns() - changed_ns) > _COARSEST_CLOCK_NS:
            return []
        self._changed_ns = changed_ns
        names = {name for name in os.listdir(self.path) if not name.startswith(".")}
        new, self._names = names - self._names, names
        return sorted(new)

    def read(self, name: str) -> bytes:
        """The content of a file. Raises OSError: it cannot be read."""
        with open(os.path.join(self.path, name), "rb") as file:
            return file.read(_LARGEST_REQUEST_BYTES)


def publish(folder: str, name: str, content: bytes) -> bool:
    """Write a file that appears at once with its whole content; False where there is one of that name.

    Raises OSError: the folder cannot be written to.
    """
    path = os.path.join(folder, name)
    unfinished = os.path.join(folder, f".{name}.{os.urandom(8).hex()}.tmp")  # ranks of several hosts may write
    try:
        with open(unfinished, "wb") as file:
            file.write(content)
        os.link(unfinished, path)
    except FileExistsError:
        return False
    finally:
        if os.path.exists(unfinished):
            os.unlink(unfinished)
    return True


def ask_for_window(config: Config, folder: str, steps: int, step_ns: float, ratio: float) -> bool:
    """Ask all ranks for a window, because steps of usually ``step_ns`` have become ``ratio`` times longer.

    False where today's windows are used up, or another rank was quicker.

    Raises:
        OSError: The folder cannot be written to.
    """
    first = requests.first_step(steps, step_ns)
    reason = f"steps take {ratio:.2f} times as long as usual"
    request = requests.WindowRequest(first, first + _WINDOW_STEPS - 1, time.time_ns(), reason=reason)
    day = time.strftime("%Y%m%d")
    for number in range(1, config.slowdown_windows + 1):
        name = f"{requests.ANOMALY_PREFIX}{day}-{number}.json"
        if publish(folder, name, request.to_json()):
            return True
        if abs(time.time() - os.stat(os.path.join(folder, name)).st_mtime) < _LATELY_S:
            return False
    return False
