"""What the name of a part stands for: a folder, a folder in a store, or one on another host."""

from __future__ import annotations

import re
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

from perfscope.collect.parts import SSH, LocalPart, Part, RemotePart
from perfscope.collect.stored import StoredPart
from perfscope.errors import SourceError, UsageError
from perfscope.sources.stores.location import is_url, locate

_REMOTE = re.compile(r"(?P<host>[^/:]+):(?P<path>.+)", re.DOTALL)


def parse_part(name: str, ssh: Sequence[str] = ()) -> Part:
    """Read the name of a part: a URL, a folder that exists, else HOST:PATH.

    Raises:
        UsageError: It is none of them, or nothing that is installed opens the URL.
    """
    if not is_url(name):
        return parse_folder(name, ssh)
    with suppress(SourceError):  # a store that does not answer is said so where its files are listed
        locate(name)
    return StoredPart(name)


def parse_folder(name: str, ssh: Sequence[str] = ()) -> LocalPart | RemotePart:
    """Read the name of a part that a job may be writing: a folder that exists, else HOST:PATH.

    Raises:
        UsageError: It is neither.
    """
    if is_url(name):
        raise UsageError(f"{name} is in a store, where no job runs", hint="name the folder that the job writes into")
    if Path(name).is_dir():
        return LocalPart(name)
    match = _REMOTE.fullmatch(name)
    if match is None:
        raise UsageError(f"{name} is not a folder", hint="name a run's folder, or HOST:PATH for one on another host")
    if match["host"].startswith("-"):
        raise UsageError(f"{match['host']} is not a host")
    return RemotePart(name, match["host"], match["path"], tuple(ssh) or SSH)
