"""Compresses a finished trace in a process of its own at the lowest priority, because gzip would stall training.

Run by itself (``python -I -S compress.py TRACE...``) it imports little of the standard library and nothing else: each
rank starts such a process behind each window (``perfscope.hooks.profiler.compressors``), and ``contextlib``,
``subprocess`` and ``typing`` would take as long to import as some megabytes to compress.

A file that it writes has parts that can be inflated apart: see ``perfscope.wire.trace_parts``. Behind it, in a process
of its own that nobody waits for, what perfscope measures of these traces is stored beside them: see
``perfscope/engine/partials_at_capture.py``, which needs more than the standard library. Its start costs more than most
traces do, so that one such process measures the traces of all ranks of a host: it takes them from a queue. A failure
there costs nothing: who analyzes the run reads the traces.
"""

from __future__ import annotations

import fcntl
import os
import stat
import struct
import sys
import time
import zlib

TYPE_CHECKING = False
if TYPE_CHECKING:
    from types import ModuleType
    from typing import BinaryIO

#: Of the modules that measure, where they are: nothing of the user's comes before them.
_PATH_VARIABLE = "PERFSCOPE_MODULES"
#: Garbage is not looked for among modules, which stay: a tenth of a start.
_MEASURE = (
    "import gc, os, sys; gc.disable(); sys.path[:] = os.environ[{variable!r}].split(os.pathsep); "
    "from perfscope.engine.partials_at_capture import serve; gc.freeze(); gc.enable(); serve(sys.argv[1:])"
)
_SESSION_PRIORITY = "/proc/self/autogroup"
_TEMPORARY = "/tmp"
_LOCK = "lock"
_LONGEST_S = 3600
_SEPARATOR = "\0"

#: Against 5 it takes 0.6 times the time, and the file is a sixth larger.
_LEVEL = 3
#: The library that inflates traces where they are analyzed deflates, too: against zlib at level 3 this level takes a
#: quarter of the time, and the file is an eighth larger.
_QUICK_LIBRARY, _QUICK_LEVEL = "isal.isal_zlib", 2
#: Smaller parts would make the file larger: these cost 0.4 %.
_PART_BYTES = 2 * 1024 * 1024
#: As ``perfscope.wire.trace_parts`` has them, which cannot be imported where this file runs by itself.
_SUBFIELD, _END_OF_STREAM = b"P1", b"\x03\x00"
_INDEX, _PART = struct.Struct("<IQQ"), struct.Struct("<II")
_MOST_PARTS = (0xFFFF - 4 - _INDEX.size) // _PART.size


class _Suppressed:
    """Errors that end a block without a word."""

    def __init__(self, kind: type[Exception]) -> None:
        self._kind = kind

    def __enter__(self) -> None:
        pass

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> bool:
        return kind is not None and issubclass(kind, self._kind)


def compress(path: str, library: ModuleType = zlib) -> None:
    """Replace a file by its .gz, atomically; wait for another process that compresses it.

    Args:
        path: The file.
        library: What deflates: zlib, or what has its functions.

    Raises:
        OSError: It cannot be written; the file is unchanged.
    """
    with _Suppressed(FileNotFoundError), open(path, "rb") as source:
        fcntl.flock(source, fcntl.LOCK_EX)
        if not os.path.exists(path):
            return
        unfinished = f"{path}.gz.tmp"
        try:
            with open(unfinished, "wb") as target:
                write_parts(source, target, library=library)
            os.replace(unfinished, f"{path}.gz")
        except OSError:
            with _Suppressed(FileNotFoundError):
                os.unlink(unfinished)
            raise
        os.unlink(path)


def write_parts(source: BinaryIO, target: BinaryIO, part_bytes: int = _PART_BYTES, library: ModuleType = zlib) -> None:
    """Compress a file into one gzip member whose parts do not refer to each other, with their places in its header.

    It is one member because browsers, to which TensorBoard sends a trace as it is, stop behind the first.

    Args:
        source: An open file.
        target: An open file that can seek.
        part_bytes: How much of the source is one part; more where there would be too many.
        library: What deflates.

    Raises:
        OSError: It cannot be read or written.
    """
    length = os.fstat(source.fileno()).st_size
    part_bytes = max(part_bytes, -(-length // _MOST_PARTS))
    room = _INDEX.size + -(-length // part_bytes) * _PART.size
    header = b"\x1f\x8b\x08\x04\0\0\0\0\0\xff" + struct.pack("<H2sH", room + 4, _SUBFIELD, room)
    target.write(header + bytes(room))
    level = _LEVEL if library is zlib else _QUICK_LEVEL
    stream = library.compressobj(level, zlib.DEFLATED, -zlib.MAX_WBITS)
    index, checksum, read = b"", 0, 0
    while part := source.read(part_bytes):
        read += len(part)
        checksum = library.crc32(part, checksum)
        data = stream.compress(part) + stream.flush(library.Z_FULL_FLUSH)
        index += _PART.pack(len(data), checksum)
        target.write(data)
    target.write(_END_OF_STREAM + struct.pack("<II", checksum, read & 0xFFFFFFFF))
    if read == length:
        index = _INDEX.pack(part_bytes, length, target.tell()) + index
        target.seek(len(header))
        target.write(index)


def start_measuring(paths: list[str]) -> None:
    """Have traces measured that were compressed: by the process that measures on this host, or by a new one."""
    with _Suppressed(OSError):
        queue = open_queue(os.environ[_PATH_VARIABLE])
        enqueue(queue, paths)
        lock = os.open(os.path.join(queue, _LOCK), os.O_CREAT | os.O_RDWR | os.O_CLOEXEC, 0o600)
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            _start_measuring(queue, lock)
        except BlockingIOError:
            pass  # who has the lock looks into the queue once more after it gives it back
        finally:
            os.close(lock)


def open_queue(modules: str) -> str:
    """The folder of the queue of this user, of this installation, on this host.

    Raises:
        OSError: It cannot be made, or another user could write into it.
    """
    folder = os.path.join(_TEMPORARY, f"perfscope-queue-{os.getuid()}-{zlib.crc32(modules.encode()):08x}")
    with _Suppressed(FileExistsError):
        os.mkdir(folder, 0o700)
    status = os.lstat(folder)
    if not stat.S_ISDIR(status.st_mode) or status.st_uid != os.getuid() or status.st_mode & 0o077:
        raise PermissionError(f"{folder} is not this user's alone")
    return folder


def enqueue(queue: str, paths: list[str]) -> None:
    """Put traces into the queue, all at once, and take out what nobody measured for an hour: nobody can.

    Raises:
        OSError: The queue cannot be written.
    """
    for entry in os.scandir(queue):
        with _Suppressed(FileNotFoundError):  # it was taken
            if entry.name != _LOCK and time.time() - entry.stat().st_mtime > _LONGEST_S:
                os.unlink(entry.path)
    name = os.path.join(queue, f"{time.time_ns()}.{os.getpid()}")
    with open(f"{name}.tmp", "w", encoding="utf-8", errors="surrogateescape") as file:
        file.write(_SEPARATOR.join(map(os.path.abspath, paths)))
    os.replace(f"{name}.tmp", f"{name}.traces")


def _start_measuring(queue: str, lock: int) -> None:
    """Start the process that measures, at the priority of this one; the lock is its own from its start on."""
    flags = ["-I", "-S", *(["-B"] if sys.dont_write_bytecode else [])]
    words = [sys.executable, *flags, "-c", _MEASURE.format(variable=_PATH_VARIABLE), queue, str(lock)]
    modules = os.environ[_PATH_VARIABLE]
    is_inherited = True
    os.set_inheritable(lock, is_inherited)
    with _Suppressed(OSError):
        # It stays in the session of this process, whose priority is that of both.
        os.posix_spawn(
            sys.executable,
            words,
            # Threads of numerical libraries would start on every processor.
            {_PATH_VARIABLE: modules, "OPENBLAS_NUM_THREADS": "1", "OMP_NUM_THREADS": "1"},
            file_actions=[(os.POSIX_SPAWN_OPEN, number, os.devnull, os.O_RDWR, 0) for number in range(3)],
        )


def become_idle() -> None:
    """Take a processor where nobody else wants it, from now on.

    Where Linux shares processors among sessions first (``sched_autogroup``), a priority counts inside a session alone:
    one such process would take as much of a processor as all ranks together.
    """
    os.nice(19)
    if os.getsid(0) == os.getpid():  # else it is the session of whoever started it by hand
        with _Suppressed(OSError), open(_SESSION_PRIORITY, "w", encoding="ascii") as file:
            file.write("19")


def load_quick_library() -> ModuleType:
    """What deflates fastest of what is installed where perfscope is; zlib where nothing else is."""
    before = sys.path[:]
    sys.path += os.environ.get(_PATH_VARIABLE, "").split(os.pathsep)
    try:
        library: ModuleType = __import__(_QUICK_LIBRARY, fromlist=[_QUICK_LIBRARY])
    except (ImportError, OSError):
        return zlib
    finally:
        sys.path[:] = before
    return library


def main(traces: list[str]) -> None:
    """Compress traces, and have them measured."""
    become_idle()
    library = load_quick_library() if os.environ.get(_PATH_VARIABLE) else zlib
    for trace in traces:
        with _Suppressed(OSError):
            compress(trace, library)
    if os.environ.get(_PATH_VARIABLE):
        start_measuring(traces)


if __name__ == "__main__":
    main(sys.argv[1:])
