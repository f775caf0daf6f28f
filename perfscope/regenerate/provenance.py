"""The files that a block was built from: the git name of their contents, and the commit that last changed them.

The name of a blob is a hash of the content alone, so it is the same in a fresh clone, a shallow one and an archive
without git. The commit is looked up when the content changes, where the report says that there is none, and where the
history does not hold the one that it states; else it is kept, so that a shallow clone cannot make a report stale.
"""

from __future__ import annotations

import hashlib
import re
import subprocess
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from perfscope.errors import SourceError

NOT_COMMITTED = "not committed"
_SHORT = 12
_TIMEOUT_S = 20
_STATED = re.compile(
    r"`(?P<path>[^`]+)` \((?:(?P<count>\d+) files, )?blob `(?P<blob>[0-9a-f]{12})`, (?P<commit>[^)]*)\)"
)


@dataclass(frozen=True, slots=True)
class Source:
    """One file or folder that a block was built from.

    Attributes:
        path: As the command names it.
        files: How many files a folder holds; 1 for a file.
        blob: The git name of its content; for a folder, of the list of its files' git names.
        commit: The commit that last changed it, or ``NOT_COMMITTED``.
    """

    path: str
    files: int
    blob: str
    commit: str

    def __str__(self) -> str:
        count = f"{self.files} files, " if self.files != 1 else ""
        commit = self.commit if self.commit == NOT_COMMITTED else f"commit `{self.commit}`"
        return f"`{self.path}` ({count}blob `{self.blob}`, {commit})"


def parse_sources(text: str) -> dict[str, Source]:
    """The sources that a block already states, by path."""
    sources = {}
    for match in _STATED.finditer(text):
        commit = match["commit"].removeprefix("commit ").strip("`")
        sources[match["path"]] = Source(match["path"], int(match["count"] or 1), match["blob"], commit)
    return sources


def describe_sources(paths: Sequence[str], folder: Path, stated: Mapping[str, Source]) -> list[Source]:
    """Describe the files that a command reads.

    Args:
        paths: As the command names them, below ``folder``.
        folder: Where the command runs.
        stated: What a block already states; a commit is kept while the content is the same.

    Raises:
        SourceError: A file cannot be read.
    """
    return [_describe_source(path, folder, stated.get(path)) for path in paths]


def _describe_source(path: str, folder: Path, stated: Source | None) -> Source:
    files = _list_files(folder / path)
    blob = _blob(folder / path, files)
    if stated is not None and stated.blob == blob and not _is_known_wrong(folder / path, stated.commit):
        return Source(path, len(files), blob, stated.commit)
    return Source(path, len(files), blob, last_commit(folder / path))


def _is_known_wrong(path: Path, commit: str) -> bool:
    """Whether git can tell that a stated commit is not one of this history; a shallow clone cannot."""
    if commit == NOT_COMMITTED:
        return True
    if _git(path, "rev-parse", "--is-shallow-repository") != "false":
        return False
    return _git(path, "merge-base", "--is-ancestor", commit, "HEAD") is None


def _list_files(path: Path) -> list[Path]:
    return sorted(file for file in path.rglob("*") if file.is_file()) if path.is_dir() else [path]


def _blob(path: Path, files: Iterable[Path]) -> str:
    """The git name of a file's content, or of the list of a folder's files with their git names."""
    try:
        if not path.is_dir():
            return git_blob(path.read_bytes())[:_SHORT]
        lines = [f"{git_blob(file.read_bytes())} {file.relative_to(path).as_posix()}\n" for file in files]
    except OSError as error:
        raise SourceError(path, f"cannot be read: {error.strerror}") from None
    return git_blob("".join(lines).encode())[:_SHORT]


def git_blob(content: bytes) -> str:
    """The name that ``git hash-object`` prints for a content.

    >>> git_blob(b"what is up, doc?")
    'bd9dbf5aae1a3862dd1526723246b20206e5fc37'
    """
    return hashlib.sha1(b"blob %d\0" % len(content) + content, usedforsecurity=False).hexdigest()


def last_commit(path: Path) -> str:
    """The commit that last changed a file or folder; ``NOT_COMMITTED`` without one, or after a later change."""
    changed = _git(path, "status", "--porcelain", "--", path.name)
    if changed is None or changed:
        return NOT_COMMITTED
    commit = _git(path, "log", "-1", "--format=%H", "--", path.name)
    return commit[:_SHORT] if commit else NOT_COMMITTED


def _git(path: Path, *arguments: str) -> str | None:
    try:
        answer = subprocess.run(
            ["git", "-C", str(path.parent.resolve()), *arguments],
            capture_output=True,
            text=True,
            timeout=_TIMEOUT_S,
            check=True,
        )
    except (OSError, subprocess.SubprocessError):
        return None
    return answer.stdout.strip()
