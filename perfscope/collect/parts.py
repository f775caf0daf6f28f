"""Copies a part of a run, from a folder or over ssh, into a folder of its own.

Over ssh the other host needs only GNU find and tar. A file appears under its name only when it is complete, so that an
interrupted copy goes on with the missing files.
"""

from __future__ import annotations

import re
import shlex
import subprocess
import tarfile
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path, PurePosixPath
from typing import IO, TypeAlias

from perfscope import __version__, wire
from perfscope.constants import MIB
from perfscope.errors import PerfscopeError, SourceError, UsageError
from perfscope.sources.partials import Refused, read_partials
from perfscope.sources.runs.records import decode_event, read_records
from perfscope.sources.stores.location import is_url
from perfscope.wire.incidents import CONTROL_FOLDER
from perfscope.wire.records import WindowRecord
from perfscope.wire.traces import PARTIALS_SUFFIX

SSH = ("ssh", "-o", "BatchMode=yes", "-o", "ConnectTimeout=15")
_TIMEOUT_S = 120
_AGAIN = "run the same command again"
_UNFINISHED_SUFFIXES = (".tmp", ".partial")


class Unreachable(PerfscopeError):
    """A part cannot be copied now; the others can."""


@dataclass(slots=True)
class Fetched:
    """What was copied of a part now; ``problem`` says why nothing of it could be."""

    part: str
    copied_files: int = 0
    copied_bytes: int = 0
    left_traces: int = 0
    problem: str | None = None


def fetch(
    part: RunPart, folder: Path, existing: Iterable[str], run: Path, ranks: frozenset[int] | None = None
) -> Fetched:
    """Copy the missing files of a part into a folder.

    Args:
        part: The part.
        folder: Where to; a file that is complete there is not copied again.
        existing: Files that the run has.
        run: The run, where these are.
        ranks: Of the traces that have partials only those of these ranks are copied; all of them where it is None.

    Raises:
        Unreachable: The other host does not answer, or a file did not arrive completely.
        SourceError: It is not a part of a run, or the folder cannot be written.
    """
    folder.mkdir(parents=True, exist_ok=True)
    fetched, skipped, cut = Fetched(part.name), set(existing), []
    for _ in range(2):  # a running job renames files after they were listed: they are copied under their new names
        listed = {name: size for name, size in part.list_files().items() if _is_data(name)}
        if not any(name == wire.RUN_FILE or name.startswith(f"{wire.RANKS_FOLDER}/") for name in listed):
            raise SourceError(part.name, "is not a part of a run", hint="it has neither run.json nor ranks/")
        listed = {name: size for name, size in listed.items() if name not in skipped}
        traces = {name for name in listed if is_trace(name)}
        cut = _copy_missing(part, folder, {name: listed[name] for name in listed.keys() - traces}, fetched)
        chosen = traces if ranks is None else _choose_traces(traces, [folder, run], ranks)
        cut += _copy_missing(part, folder, {name: listed[name] for name in chosen}, fetched)
        fetched.left_traces = len(traces) - len(chosen)
        if not cut:
            return fetched
    raise Unreachable(f"{part.name}: {cut[0]} did not arrive completely", hint=_AGAIN)


def _copy_missing(part: RunPart, folder: Path, listed: Mapping[str, int], fetched: Fetched) -> list[str]:
    """Copy what is not yet complete; the files that did not arrive completely."""
    missing = {name: size for name, size in sorted(listed.items()) if _size(folder / name) != size}
    try:
        if missing:
            part.copy(missing, folder)
    except OSError as error:
        raise SourceError(folder, f"cannot be written: {error.strerror or error}") from None
    arrived = {name: size for name, size in missing.items() if _size(folder / name) >= size}
    fetched.copied_files += len(arrived)
    fetched.copied_bytes += sum(arrived.values())
    return [name for name in missing if name not in arrived]


def _size(path: Path) -> int:
    return path.stat().st_size if path.is_file() else -1


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
        """The size of each file in bytes, by its path below the part."""
        root = Path(self.name)
        files = [path for path in root.rglob("*") if path.is_file() and not path.is_symlink()]
        return {path.relative_to(root).as_posix(): path.stat().st_size for path in files}

    def copy(self, files: Iterable[str], folder: Path) -> None:
        """Copy files into a folder, those that are still there."""
        for name in files:
            with suppress(FileNotFoundError), (Path(self.name) / name).open("rb") as source:
                write_atomically(_blocks_of(source), folder / name)


@dataclass(frozen=True)
class RemotePart:
    """A part on another host."""

    name: str
    host: str
    path: str
    ssh: tuple[str, ...]

    def list_files(self) -> dict[str, int]:
        """The size of each file in bytes, by its path below the part."""
        words = [*self.ssh, self.host, f"cd {self.quoted_path()} && find . -type f -printf '%s %P\\0'"]
        try:
            answer = subprocess.run(words, input=b"", capture_output=True, timeout=_TIMEOUT_S, check=False)
        except subprocess.TimeoutExpired:
            raise Unreachable(f"{self.name}: no answer in {_TIMEOUT_S} s") from None
        except OSError as error:
            raise Unreachable(f"{words[0]} cannot be started: {error.strerror}") from None
        if answer.returncode != 0:
            errors = answer.stderr.decode(errors="replace").strip().splitlines()
            raise Unreachable(f"{self.name}: {errors[-1] if errors else f'exit status {answer.returncode}'}")
        entries = [entry.split(" ", 1) for entry in answer.stdout.decode(errors="surrogateescape").split("\0") if entry]
        return {name: int(size) for size, name in entries}

    def copy(self, files: Iterable[str], folder: Path) -> None:
        """Copy files into a folder, those that are still there."""
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
                raise Unreachable(f"{self.name}: the copy was interrupted: {error}", hint=_AGAIN) from None

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


RunPart: TypeAlias = LocalPart | RemotePart


def write_atomically(blocks: Iterable[bytes], target: Path) -> None:
    """Write a file that appears under its name when it is complete. Raises OSError: it cannot be written."""
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


def _choose_traces(names: Iterable[str], folders: Sequence[Path], ranks: frozenset[int]) -> set[str]:
    """The traces without whole partials, and those of some ranks; ``folders`` hold all other files of the part."""
    stored = {path for folder in folders for path in _find_measured(folder)}
    wanted = {path for folder in folders for path in _find_recorded(folder, ranks)}
    return {name for name in names if _stem(name) not in stored or _stem(name) in wanted}


def is_trace(name: str) -> bool:
    """Whether a file of a part is a trace, by its path below the part."""
    of_traces = name.startswith(f"{wire.TRACES_FOLDER}/")
    return of_traces and name.endswith((wire.TRACE_SUFFIX, f"{wire.TRACE_SUFFIX}.gz"))


def _stem(name: str) -> str:
    return name.removesuffix(".gz")


def _find_measured(folder: Path) -> Iterator[str]:
    """The traces for which partials are there, by their paths below the part, not compressed."""
    for path in (folder / wire.TRACES_FOLDER).rglob(f"*{PARTIALS_SUFFIX}"):
        try:
            stored = read_partials(str(path))
        except Refused:
            continue
        if stored.version != __version__ or not stored.traces:
            continue  # its trace will be read
        measured, *explaining = stored.traces
        beside = path.relative_to(folder).parent
        yield _stem((PurePosixPath(beside) / measured.name).as_posix())
        # The window with operators that a light window was measured with stands in the folder above.
        yield from (f"{wire.TRACES_FOLDER}/{_stem(trace.name)}" for trace in explaining)


def _find_recorded(folder: Path, ranks: frozenset[int]) -> Iterator[str]:
    """The traces of the windows that some ranks recorded."""
    for path in (folder / wire.RANKS_FOLDER).glob("*"):
        number = wire.parse_rank_folder(path.name)
        if number is not None and number[0] in ranks:
            for event in read_records(path / wire.EVENTS_FILE, decode_event, []):
                if isinstance(event, WindowRecord):
                    yield f"{wire.TRACES_FOLDER}/{event.trace}"


_REMOTE = re.compile(r"(?P<host>[^/:]+):(?P<path>.+)", re.DOTALL)


def parse_part(name: str, ssh: Sequence[str] = ()) -> RunPart:
    """Read the name of a part: a folder that exists, else HOST:PATH. Raises UsageError: it is neither."""
    if is_url(name):
        raise UsageError(f"{name} is a URL", hint="copy the folder with the store's own tools, and collect the copy")
    if Path(name).is_dir():
        return LocalPart(name)
    match = _REMOTE.fullmatch(name)
    if match is None:
        raise UsageError(f"{name} is not a folder", hint="name a run's folder, or HOST:PATH for one on another host")
    if match["host"].startswith("-"):
        raise UsageError(f"{match['host']} is not a host")
    return RemotePart(name, match["host"], match["path"], tuple(ssh) or SSH)
