"""Arms what torch and Python keep for a post-mortem, where the user has not.

torch's Flight Recorder is a ring of the last collectives of a process. It reads its environment variables when the
first process group is built, so they are set right before that. Python's faulthandler writes the stacks of a process
that dies of a fatal signal; the signal then ends the process as it would have.
"""

from __future__ import annotations

import faulthandler
import os
import re
import resource
import sys
from typing import Any

from perfscope.hooks.record_files import identify, is_same_file, open_to_append
from perfscope.wire.incidents import RECORDER_KINDS

#: Collectives that are remembered; an entry takes about 1 kB of memory.
_ENTRIES = "2000"
#: torch 2.9 gave two of the variables new names, and warns of the old ones.
_RENAMED_IN = (2, 9)
_SIZE = ("TORCH_FR_BUFFER_SIZE", "TORCH_NCCL_TRACE_BUFFER_SIZE")
_DUMP_FILE = ("TORCH_FR_DUMP_TEMP_FILE", "TORCH_NCCL_DEBUG_INFO_TEMP_FILE")
#: NCCL's watchdog writes the recorder's dump before it ends the process. TORCH_NCCL_ENABLE_TIMING, which tells a
#: collective that a device has begun from one that waits, is left to the user: it costs an event a collective, and
#: torch warns that its watchdog may hang on it.
_DUMP_ON_TIMEOUT = "TORCH_NCCL_DUMP_ON_TIMEOUT"
#: One more open file is a small share of so many.
_FEWEST_FILES = 64
_VERSION = re.compile(r"(\d+)\.(\d+)")
#: What dumps the recorder of each kind of backend.
_DUMPS: tuple[tuple[str, dict[str, str]], ...] = (
    ("_dump_nccl_trace", {}),
    ("_dump_fr_trace", {}),
    ("_dump_fr_trace", {"backend": "nccl2"}),
)


def arm_recorder(dump_prefix: str, environment: Any = os.environ) -> None:
    """Set the recorder's variables where none of their names is set; torch appends the rank to ``dump_prefix``."""
    version = _VERSION.match(str(getattr(sys.modules.get("torch"), "__version__", "")))
    is_new = version is None or (int(version[1]), int(version[2])) >= _RENAMED_IN
    for names, value in ((_SIZE, _ENTRIES), (_DUMP_FILE, dump_prefix)):
        if not any(name in environment for name in names):
            environment[names[0 if is_new else 1]] = value
    if _DUMP_ON_TIMEOUT not in environment:
        environment[_DUMP_ON_TIMEOUT] = "1"


def dump_recorder() -> dict[str, bytes]:
    """The recorder's dumps as torch pickles them, by the kind of backend: ``generic`` is of gloo and others.

    Older versions of torch have the first alone, or no recorder of nccl2; one without entries is left out.
    """
    library = getattr(getattr(sys.modules.get("torch"), "_C", None), "_distributed_c10d", None)
    dumps: dict[str, bytes] = {}
    for kind, (name, options) in zip(RECORDER_KINDS, _DUMPS, strict=True):
        dump = getattr(library, name, None)
        try:
            content = bytes(dump(**options)) if dump is not None else b""
        except TypeError:  # it knows no backends
            continue
        if b"entries" in content and content not in dumps.values():
            dumps[kind] = content
    return dumps


class FaultHandler:
    """Python's faulthandler, used where the script does not use it."""

    def __init__(self, path: str) -> None:
        self._path = path
        self._file: int | None = None
        self._identity = (0, 0)
        self._enable = faulthandler.enable

    def enable(self) -> None:
        """Write stacks into a file where the process dies of a fatal signal.

        Raises OSError: the file cannot be created.
        """
        if faulthandler.is_enabled() or resource.getrlimit(resource.RLIMIT_NOFILE)[0] < _FEWEST_FILES:
            return  # it is the script's own, or the script may need every open file
        self._open()

        def enable_for_script(*args: Any, **kwargs: Any) -> None:
            self._file = None
            self._enable(*args, **kwargs)

        faulthandler.enable = enable_for_script

    def _open(self) -> None:
        self._file = open_to_append(self._path)  # a number, which nothing closes at the end of the process
        self._identity = identify(self._file)
        self._enable(file=self._file, all_threads=True)

    def check_file(self) -> None:
        """Open the file again where the script closed the descriptor, which may be the script's own file now.

        Raises OSError: the file cannot be opened; nothing is written then.
        """
        if self._file is not None and not is_same_file(self._file, self._identity):
            faulthandler.disable()
            self._open()
