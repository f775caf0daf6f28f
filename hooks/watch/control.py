"""The requests to this process in the folder ``RUN/control``, which is looked at every two seconds during training."""

from __future__ import annotations

import os
import time

from perfscope.constants import NS_PER_S

#: A file that came in the same tick of the file system's clock as the last look does not change the folder's time.
_COARSEST_CLOCK_NS = 5 * NS_PER_S
_LARGEST_REQUEST_BYTES = 65536


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
