"""Copies a part of a run, from a folder or over ssh, into a folder of its own.

Over ssh the other host needs only GNU find and tar. A file appears under its name only when it is complete, so that an
interrupted copy goes on with the missing files.
"""

from __future__ import annotations

import re
import shlex
import shutil
import subprocess
import tarfile
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import IO, Protocol

from perfscope import wire
from perfscope.collect.traces import TraceChoice, is_trace
from perfscope.constants import MIB
from perfscope.errors import PerfscopeError, SourceError, UsageError
from perfscope.wire.incidents import CONTROL_FOLDER

_REMOTE = re.compile(r"(?P<host>[^/:]+):(?P<path>.+)", re.DOTALL)
_SSH = ("ssh", "-o", "BatchMode=yes", "-o", "ConnectTimeout=15")
_LIST_TIMEOUT_S = 120
_UNFINISHED_SUFFIXES = (".tmp", ".partial")


class Unreachable(PerfscopeError):
    """A part cannot be copied now; the others can."""


class Part(Protocol):
    """A part of a run."""

    @property
    def name(self) -> str:
        """Its name, as the user typed it."""

    def list_files(self) -> dict[str, int]:
        """Find the size of each file in bytes, by its path below the part."""

    def copy(self, files: Sequence[str], folder: Path) -> None:
        """Copy files into a folder."""


def parse_part(name: str, ssh: Sequence[str] = ()) -> Part:
    """Read the name of a part: a folder that exists, else HOST:PATH.

    Raises:
        UsageError: It is neither.
    """
    if Path(name).is_dir():
        return LocalPart(name)
    match = _REMOTE.fullmatch(name)
    if match is None:
        raise UsageError(f"{name} is not a folder", hint="name a run's folder, or HOST:PATH for one on another host")
    if match["host"].startswith("-"):
        raise UsageError(f"{match['host']} is not a host")
    return RemotePart(name, match["host"], match["path"], tuple(ssh) or _SSH)


@dataclass(frozen=True, slots=True)
class Fetched:
    """What was copied of a part.

    Attributes:
        files: Number of files.
        size_bytes: Their size.
        left_traces: Number of traces that stay where they are.
    """

    files: int
    size_bytes: int
    left_traces: int = 0


def fetch(part: Part, folder: Path, existing: Iterable[str], run: Path, choice: TraceChoice | None = None) -> Fetched:
    """Copy the missing files of a part.

    Args:
        part: The part.
        folder: Where to; a file that is complete there is not copied again.
        existing: Files that are not copied, because the run has them.
        run: The run, where such files are.
        choice: Which traces are copied; all of them where it is None.

    Raises:
        Unreachable: The other host does not answer, or the part does not exist.
        SourceError: The folder is not a run.
    """
    listed = {name: size for name, size in part.list_files().items() if _is_data(name)}
    if not any(name == wire.RUN_FILE or name.startswith(f"{wire.RANKS_FOLDER}/") for name in listed):
        raise SourceError(part.name, "is not a part of a run", hint="it has neither run.json nor ranks/")
    folder.mkdir(parents=True, exist_ok=True)
    skipped = set(existing)
    listed = {name: size for name, size in listed.items() if name not in skipped}
    if choice is None:
        return _copy_missing(part, folder, listed)
    others = _copy_missing(part, folder, {name: size for name, size in listed.items() if not is_trace(name)})
    traces = [name for name in listed if is_trace(name)]
    chosen = choice.choose(traces, [folder, run])
    copied = _copy_missing(part, folder, {name: listed[name] for name in chosen})
    return Fetched(
        others.files + copied.files, others.size_bytes + copied.size_bytes, left_traces=len(traces) - len(chosen)
    )


def _copy_missing(part: Part, folder: Path, listed: Mapping[str, int]) -> Fetched:
    """Copy what is not yet complete.

    Raises:
        Unreachable: A file did not arrive completely.
    """
    missing = [
        name
        for name, size in sorted(listed.items())
        if not ((folder / name).is_file() and (folder / name).stat().st_size == size)
    ]
    if missing:
        part.copy(missing, folder)
    for name in missing:
        if not (folder / name).is_file() or (folder / name).stat().st_size < listed[name]:
            raise Unreachable(f"{part.name}: {name} did not arrive completely", hint="run the same command again")
    return Fetched(len(missing), sum(listed[name] for name in missing))


def _is_data(name: str) -> bool:
    """Whether a file is data of the run: not hidden, not still being written, no request to the ranks of a host."""
    is_request = name.startswith(f"{CONTROL_FOLDER}/")
    is_hidden = any(piece.startswith(".") for piece in PurePosixPath(name).parts)
    return not is_hidden and not is_request and not name.endswith(_UNFINISHED_SUFFIXES)


@dataclass(frozen=True)
class LocalPart:
    """A part in a folder of this machine."""

    name: str

    def list_files(self) -> dict[str, int]:
        """See ``Part``."""
        root = Path(self.name)
        files = [path for path in root.rglob("*") if path.is_file() and not path.is_symlink()]
        return {path.relative_to(root).as_posix(): path.stat().st_size for path in files}

    def copy(self, files: Sequence[str], folder: Path) -> None:
        """See ``Part``."""
        for name in files:
            with (Path(self.name) / name).open("rb") as source:
                _write_atomically(source, folder / name)


@dataclass(frozen=True)
class RemotePart:
    """A part on another host."""

    name: str
    host: str
    path: str
    ssh: tuple[str, ...]

    def list_files(self) -> dict[str, int]:
        """See ``Part``."""
        command = f"cd {self.quoted_path()} && find . -type f -printf '%s %P\\0'"
        try:
            answer = subprocess.run(
                [*self.ssh, self.host, command], capture_output=True, timeout=_LIST_TIMEOUT_S, check=False
            )
        except subprocess.TimeoutExpired:
            raise Unreachable(f"{self.name}: no answer in {_LIST_TIMEOUT_S} s") from None
        except OSError as error:
            raise Unreachable(f"{self.ssh[0]} cannot be started: {error.strerror}") from None
        if answer.returncode != 0:
            errors = answer.stderr.decode(errors="replace").strip().splitlines()
            raise Unreachable(f"{self.name}: {errors[-1] if errors else f'ssh exited with {answer.returncode}'}")
        entries = [entry.split(" ", 1) for entry in answer.stdout.decode(errors="surrogateescape").split("\0") if entry]
        return {name: int(size) for size, name in entries}

    def copy(self, files: Sequence[str], folder: Path) -> None:
        """See ``Part``."""
        command = f"cd {self.quoted_path()} && tar --no-recursion --null -T - -cf -"
        with subprocess.Popen(
            [*self.ssh, self.host, command], stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE
        ) as process:
            assert process.stdin is not None
            assert process.stdout is not None
            process.stdin.write(b"".join(b"./" + name.encode(errors="surrogateescape") + b"\0" for name in files))
            process.stdin.close()
            try:
                self._unpack(process.stdout, frozenset(files), folder)
            except (tarfile.TarError, EOFError) as error:
                process.kill()
                raise Unreachable(
                    f"{self.name}: the copy was interrupted: {error}", hint="run the same command again"
                ) from None

    def _unpack(self, stream: IO[bytes], files: frozenset[str], folder: Path) -> None:
        """Write the requested members of an archive and no others."""
        with tarfile.open(fileobj=stream, mode="r|") as archive:
            for member in archive:
                name = member.name.removeprefix("./")
                source = archive.extractfile(member) if name in files and member.isreg() else None
                if source is not None and ".." not in PurePosixPath(name).parts and not name.startswith("/"):
                    _write_atomically(source, folder / name)

    def quoted_path(self) -> str:
        """The path for the other host's shell, which expands a leading ``~`` and nothing else."""
        home, slash, rest = self.path.partition("/")
        if re.fullmatch(r"~[\w.-]*", home):
            return f"{home}{slash}{shlex.quote(rest) if rest else ''}"
        return shlex.quote(self.path)


def _write_atomically(source: IO[bytes], target: Path) -> None:
    target.parent.mkdir(parents=True, exist_ok=True)
    unfinished = target.with_name(f".{target.name}.partial")
    with unfinished.open("wb") as file:
        shutil.copyfileobj(source, file, MIB)
    unfinished.replace(target)
