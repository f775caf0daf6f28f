"""Copies a part of a run, from a folder, over ssh or from a store, into a folder of its own.

Over ssh the other host needs only GNU find and tar. A file appears under its name only when it is complete, so that an
interrupted copy goes on with the missing files.
"""

from __future__ import annotations

import re
import shlex
import subprocess
import tarfile
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path, PurePosixPath
from typing import IO, Protocol

from perfscope import __version__, wire
from perfscope.constants import MIB
from perfscope.errors import PerfscopeError, SourceError, UsageError
from perfscope.sources.partials import Refused, read_partials
from perfscope.sources.runs.records import decode_event, read_records
from perfscope.sources.stores.location import is_url, join, locate
from perfscope.sources.stores.reading import kind_of, list_below, open_stored
from perfscope.wire.incidents import CONTROL_FOLDER
from perfscope.wire.records import WindowRecord
from perfscope.wire.traces import PARTIALS_SUFFIX

SSH = ("ssh", "-o", "BatchMode=yes", "-o", "ConnectTimeout=15")
_TIMEOUT_S = 120
#: Most files are small, and wait for the store longer than they take.
_AT_ONCE = 16
_AGAIN = "run the same command again"
_UNFINISHED_SUFFIXES = (".tmp", ".partial")


class Unreachable(PerfscopeError):
    """A part cannot be copied now; the others can."""


class RunPart(Protocol):
    """A part of a run."""

    @property
    def name(self) -> str:
        """Its name, as the user typed it."""

    def list_files(self) -> dict[str, int]:
        """Find the size of each file in bytes, by its path below the part."""

    def copy(self, files: Mapping[str, int], folder: Path) -> dict[str, str]:
        """Copy files, of which it has the sizes, into a folder; for each that is lost, why, as a sentence."""


@dataclass(slots=True)
class Fetched:
    """What was copied of a part.

    Attributes:
        name: The part's name, as the user typed it.
        copied_files: Number of files that were copied now.
        copied_bytes: Their size.
        left_traces: Number of its traces that stay where they are.
        lost: What is there and could not be copied, as sentences.
        problem: Why nothing of it could be copied.
    """

    name: str
    copied_files: int = 0
    copied_bytes: int = 0
    left_traces: int = 0
    lost: list[str] = field(default_factory=list)
    problem: str | None = None


def fetch(
    part: RunPart, folder: Path, existing: Iterable[str], run: Path, choice: TraceChoice | None = None
) -> Fetched:
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
    fetched = Fetched(part.name)
    records = {name: size for name, size in listed.items() if not is_trace(name)}
    _copy_missing(part, folder, records, fetched)
    if len(fetched.lost) == len(records):
        raise Unreachable(fetched.lost[0], hint=_AGAIN)
    traces = {name: size for name, size in listed.items() if is_trace(name)}
    chosen = sorted(traces) if choice is None else choice.choose(traces, [folder, run])
    _copy_missing(part, folder, {name: traces[name] for name in chosen}, fetched)
    fetched.left_traces = len(traces) - len(chosen)
    return fetched


def _copy_missing(part: RunPart, folder: Path, listed: Mapping[str, int], fetched: Fetched) -> None:
    """Copy what is not yet complete.

    Raises:
        Unreachable: A file did not arrive completely, and the part does not say why.
        SourceError: The folder cannot be written.
    """
    missing = {
        name: size
        for name, size in sorted(listed.items())
        if not ((folder / name).is_file() and (folder / name).stat().st_size == size)
    }
    try:
        lost = part.copy(missing, folder) if missing else {}
    except OSError as error:
        raise SourceError(folder, f"cannot be written: {error.strerror or error}") from None
    arrived = [name for name in missing if name not in lost]
    for name in arrived:
        if not (folder / name).is_file() or (folder / name).stat().st_size < listed[name]:
            raise Unreachable(f"{part.name}: {name} did not arrive completely", hint=_AGAIN)
    fetched.copied_files += len(arrived)
    fetched.copied_bytes += sum(listed[name] for name in arrived)
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
        """See ``RunPart``."""
        root = Path(self.name)
        files = [path for path in root.rglob("*") if path.is_file() and not path.is_symlink()]
        return {path.relative_to(root).as_posix(): path.stat().st_size for path in files}

    def copy(self, files: Mapping[str, int], folder: Path) -> dict[str, str]:
        """See ``RunPart``."""
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
        """See ``RunPart``."""
        command = f"cd {self.quoted_path()} && find . -type f -printf '%s %P\\0'"
        listing = execute(self.name, [*self.ssh, self.host, command]).decode(errors="surrogateescape")
        entries = [entry.split(" ", 1) for entry in listing.split("\0") if entry]
        return {name: int(size) for size, name in entries}

    def copy(self, files: Mapping[str, int], folder: Path) -> dict[str, str]:
        """See ``RunPart``."""
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


def execute(name: str, words: Sequence[str], content: bytes = b"") -> bytes:
    """Run a command on a part's host; returns what it prints.

    Raises:
        Unreachable: It cannot be started, fails, or does not end in time.
    """
    try:
        answer = subprocess.run(words, input=content, capture_output=True, timeout=_TIMEOUT_S, check=False)
    except subprocess.TimeoutExpired:
        raise Unreachable(f"{name}: no answer in {_TIMEOUT_S} s") from None
    except OSError as error:
        raise Unreachable(f"{words[0]} cannot be started: {error.strerror}") from None
    if answer.returncode != 0:
        errors = answer.stderr.decode(errors="replace").strip().splitlines()
        raise Unreachable(f"{name}: {errors[-1] if errors else f'exit status {answer.returncode}'}")
    return answer.stdout


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


#: What stands for the traces of every rank.
EVERY_RANK = "all"


@dataclass(frozen=True, slots=True)
class TraceChoice:
    """The traces that are brought besides those that have no partials.

    Attributes:
        ranks: Those of these ranks; of all where it is None.
    """

    ranks: frozenset[int] | None = frozenset()

    def choose(self, names: Collection[str], folders: Sequence[Path]) -> list[str]:
        """Choose among the traces of a part.

        Args:
            names: Their paths below the part.
            folders: Where all other files of the part are, which were copied before: some are in the run already.
        """
        if self.ranks is None:
            return sorted(names)
        stored = {path for folder in folders for path in _find_measured(folder)}
        wanted = {path for folder in folders for path in _find_recorded(folder, self.ranks)}
        return sorted(name for name in names if _stem(name) not in stored or _stem(name) in wanted)


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


class _Lost(Exception):
    """The store does not give a file, or not all of it."""


@dataclass(frozen=True)
class PartInStore:
    """A part in a store."""

    name: str

    def list_files(self) -> dict[str, int]:
        """See ``RunPart``."""
        try:
            if kind_of(self.name) is not None:
                return list_below(self.name)
        except SourceError as error:
            raise Unreachable(error.problem, hint=_AGAIN) from None
        raise Unreachable(f"{self.name} does not exist")

    def copy(self, files: Mapping[str, int], folder: Path) -> dict[str, str]:
        """See ``RunPart``: several are read at once, each block by block."""

        def copy(name: str) -> str | None:
            try:
                write_atomically(_blocks_of_stored(join(self.name, name), files[name]), folder / name)
            except _Lost as loss:
                return str(loss)
            return None

        with ThreadPoolExecutor(_AT_ONCE) as pool:
            losses = dict(zip(files, pool.map(copy, files), strict=True))
        return {name: loss for name, loss in losses.items() if loss is not None}


def _blocks_of_stored(location: str, size: int) -> Iterator[bytes]:
    """A file of a store, block by block.

    Raises:
        _Lost: The store does not give it, or less than it should have.
    """
    try:
        with open_stored(location) as source:
            yield from _blocks_of(source)
            if source.tell() < size:
                raise _Lost(f"{location} cannot be read: the store sent less of it than there is")
    except SourceError as error:
        raise _Lost(error.problem) from None
    except OSError as error:
        raise _Lost(f"{location} cannot be read: {error.strerror or error}") from None


_REMOTE = re.compile(r"(?P<host>[^/:]+):(?P<path>.+)", re.DOTALL)


def parse_part(name: str, ssh: Sequence[str] = ()) -> RunPart:
    """Read the name of a part: a URL, a folder that exists, else HOST:PATH.

    Raises:
        UsageError: It is none of them, or nothing that is installed opens the URL.
    """
    if is_url(name):
        with suppress(SourceError):  # a store that does not answer is said so where its files are listed
            locate(name)
        return PartInStore(name)
    if Path(name).is_dir():
        return LocalPart(name)
    match = _REMOTE.fullmatch(name)
    if match is None:
        raise UsageError(f"{name} is not a folder", hint="name a run's folder, or HOST:PATH for one on another host")
    if match["host"].startswith("-"):
        raise UsageError(f"{match['host']} is not a host")
    return RemotePart(name, match["host"], match["path"], tuple(ssh) or SSH)
