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
from typing import TYPE_CHECKING, Any

from perfscope.hooks.record_files import identify, is_same_file, open_to_append
from perfscope.wire.incidents import RECORDER_KINDS

if TYPE_CHECKING:
    from collections.abc import Callable

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
    """Python's faulthandler, used where the script does not use it.

    Its timer is a thread of C's that needs no interpreter lock: it writes the stacks of a process whose lock is held
    for ever. There is one timer a process; the script's own comes first.

    Attributes:
        is_set: Whether the timer runs.
    """

    def __init__(self, path: str) -> None:
        self._path = path
        self._file: int | None = None
        self._identity = (0, 0)
        self._is_enabled = False
        self._enable: Callable[..., None] = faulthandler.enable
        self._may_set_timer = False
        self._originals: tuple[Callable[..., None], Callable[..., None]] | None = None
        self.is_set = False
        self._is_forking = False

    def enable(self, *, was_loaded: bool) -> None:
        """Write stacks into a file where the process dies of a fatal signal.

        Args:
            was_loaded: Whether the script has loaded faulthandler, and may have set its timer.

        Raises:
            OSError: The file cannot be created.
        """
        if resource.getrlimit(resource.RLIMIT_NOFILE)[0] < _FEWEST_FILES:
            return  # the script may need every one of them
        file = self._open()
        if not faulthandler.is_enabled():
            self._is_enabled, self._enable = True, faulthandler.enable
            self._enable(file=file, all_threads=True)

            def enable_for_script(*args: Any, **kwargs: Any) -> None:
                self._is_enabled = False
                self._enable(*args, **kwargs)

            faulthandler.enable = enable_for_script
        if not was_loaded:
            self._may_set_timer = True
            self._originals = faulthandler.dump_traceback_later, faulthandler.cancel_dump_traceback_later
            faulthandler.dump_traceback_later = self._hand_over(self._originals[0])
            faulthandler.cancel_dump_traceback_later = self._hand_over(self._originals[1])
            # A forked child has the timer without its thread, and would wait for that thread when it ends, for ever.
            os.register_at_fork(before=self._begin_fork, after_in_parent=self._end_fork, after_in_child=self._end_fork)

    def _open(self) -> int:
        self._file = file = open_to_append(self._path)  # a number, which nothing closes at the end of the process
        self._identity = identify(file)
        return file

    def check_file(self) -> None:
        """Open the file again where the script closed the descriptor, which may be the script's own file now.

        Raises:
            OSError: The file cannot be opened; nothing is written then.
        """
        if self._file is None or is_same_file(self._file, self._identity):
            return
        self.cancel_timer()
        if self._is_enabled:
            faulthandler.disable()
        self._file = None
        file = self._open()
        if self._is_enabled:
            self._enable(file=file, all_threads=True)

    def set_timer(self, seconds: float) -> None:
        """Write stacks after so many seconds, unless the timer is set again or cancelled before."""
        if self._may_set_timer and not self._is_forking and self._originals is not None and self._file is not None:
            self.is_set = True
            self._originals[0](seconds, file=self._file)

    def cancel_timer(self) -> None:
        """Write nothing later."""
        if self.is_set and self._may_set_timer and self._originals is not None:
            self.is_set = False
            self._originals[1]()

    def _begin_fork(self) -> None:
        self._is_forking = True
        self.cancel_timer()

    def _end_fork(self) -> None:
        self._is_forking = False

    def _hand_over(self, original: Callable[..., None]) -> Callable[..., None]:
        """What the script calls: from then on the timer is its own."""

        def call(*args: Any, **kwargs: Any) -> None:
            self.cancel_timer()
            self._may_set_timer = False
            original(*args, **kwargs)

        return call
