"""Copies a part of a run, from a folder, over ssh or from a store, into a folder of its own.

Over ssh the other host needs only GNU find and tar. A file appears under its name only when it is complete, so that an
interrupted copy goes on with the missing files.
"""

from __future__ import annotations

import re
import shlex
import subprocess
import tarfile
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path, PurePosixPath
from typing import IO, Protocol

from perfscope import wire
from perfscope.collect.traces import TraceChoice, find_unlisted, is_trace
from perfscope.constants import MIB
from perfscope.errors import PerfscopeError, SourceError
from perfscope.wire.incidents import CONTROL_FOLDER

SSH = ("ssh", "-o", "BatchMode=yes", "-o", "ConnectTimeout=15")
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

    def find(self, names: Sequence[str], /) -> dict[str, int]:
        """Find files that are there and not listed, by asking for their names."""

    def copy(self, files: Sequence[str], folder: Path) -> dict[str, str]:
        """Copy files into a folder; for each that is lost, why, as a sentence."""


@dataclass(slots=True)
class Fetched:
    """What was copied of a part.

    Attributes:
        files: Number of files.
        size_bytes: Their size.
        left_traces: Number of traces that stay where they are.
        lost: What is there and could not be copied, as sentences.
    """

    files: int = 0
    size_bytes: int = 0
    left_traces: int = 0
    lost: list[str] = field(default_factory=list)


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
    fetched = Fetched()
    records = {name: size for name, size in listed.items() if not is_trace(name)}
    _copy_missing(part, folder, records, fetched)
    if len(fetched.lost) == len(records):
        raise Unreachable(fetched.lost[0], hint="run the same command again")
    unlisted = part.find(find_unlisted(folder, listed.keys() | skipped, choice))
    _copy_missing(part, folder, {name: size for name, size in unlisted.items() if not is_trace(name)}, fetched)
    traces = {name: size for name, size in (listed | unlisted).items() if is_trace(name)}
    chosen = sorted(traces) if choice is None else choice.choose(traces, [folder, run])
    _copy_missing(part, folder, {name: traces[name] for name in chosen}, fetched)
    fetched.left_traces = len(traces) - len(chosen)
    return fetched


def _copy_missing(part: Part, folder: Path, listed: Mapping[str, int], fetched: Fetched) -> None:
    """Copy what is not yet complete.

    Raises:
        Unreachable: A file did not arrive completely, and the part does not say why.
        SourceError: The folder cannot be written.
    """
    missing = [
        name
        for name, size in sorted(listed.items())
        if not ((folder / name).is_file() and (folder / name).stat().st_size == size)
    ]
    try:
        lost = part.copy(missing, folder) if missing else {}
    except OSError as error:
        raise SourceError(folder, f"cannot be written: {error.strerror or error}") from None
    arrived = [name for name in missing if name not in lost]
    for name in arrived:
        if not (folder / name).is_file() or (folder / name).stat().st_size < listed[name]:
            raise Unreachable(f"{part.name}: {name} did not arrive completely", hint="run the same command again")
    fetched.files += len(arrived)
    fetched.size_bytes += sum(listed[name] for name in arrived)
    fetched.lost += lost.values()


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

    def find(self, _: Sequence[str], /) -> dict[str, int]:
        """See ``Part``: a folder lists what it has."""
        return {}

    def copy(self, files: Sequence[str], folder: Path) -> dict[str, str]:
        """See ``Part``."""
        for name in files:
            with (Path(self.name) / name).open("rb") as source:
                write_atomically(_blocks_of(source), folder / name)
        return {}


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

    def find(self, _: Sequence[str], /) -> dict[str, int]:
        """See ``Part``: a host lists what it has."""
        return {}

    def copy(self, files: Sequence[str], folder: Path) -> dict[str, str]:
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
        return {}

    def _unpack(self, stream: IO[bytes], files: frozenset[str], folder: Path) -> None:
        """Write the requested members of an archive and no others."""
        with tarfile.open(fileobj=stream, mode="r|") as archive:
            for member in archive:
                name = member.name.removeprefix("./")
                source = archive.extractfile(member) if name in files and member.isreg() else None
                if source is not None and ".." not in PurePosixPath(name).parts and not name.startswith("/"):
                    write_atomically(_blocks_of(source), folder / name)

    def quoted_path(self) -> str:
        """The path for the other host's shell, which expands a leading ``~`` and nothing else."""
        home, slash, rest = self.path.partition("/")
        if re.fullmatch(r"~[\w.-]*", home):
            return f"{home}{slash}{shlex.quote(rest) if rest else ''}"
        return shlex.quote(self.path)


def write_atomically(blocks: Iterable[bytes], target: Path) -> None:
    """Write a file that appears under its name when it is complete, and not at all where its blocks end early.

    Raises:
        OSError: It cannot be written.
    """
    target.parent.mkdir(parents=True, exist_ok=True)
    unfinished = target.with_name(f".{target.name}.partial")
    try:
        with unfinished.open("wb") as file:
            file.writelines(blocks)
        unfinished.replace(target)
    except BaseException:
        unfinished.unlink(missing_ok=True)
        raise


def _blocks_of(source: IO[bytes]) -> Iterator[bytes]:
    return iter(partial(source.read, MIB), b"")
