"""URLs, and the file systems behind them.

Credentials are never part of a URL: each file system finds them as its own tools do, in the environment, in files of
the user, or from the machine.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

from perfscope.errors import SourceError, UsageError
from perfscope.sources.stores.failures import describe, failures
from perfscope.sources.stores.secrets import without_secrets

if TYPE_CHECKING:  # an optional dependency
    from fsspec import AbstractFileSystem

_URL = "://"
#: What opens the URLs of a protocol, as an extra of this distribution.
_EXTRAS = {
    "s3": "s3", "s3a": "s3", "gs": "gcs", "gcs": "gcs", "abfs": "abfs", "abfss": "abfs", "az": "abfs", "adl": "abfs",
}  # fmt: skip
#: The libraries that write what they try to standard error, where nobody set up logging: an error says it here.
_TALKATIVE = ("azure",)
#: Loaded by name where a URL is opened: nothing else needs it at a start.
_LOGGING = "logging"


def is_url(location: str) -> bool:
    """Whether a location is a URL for fsspec.

    >>> is_url("s3://bucket/run/traces"), is_url("/data/traces")
    (True, False)
    """
    return _URL in location


def join(folder: str, name: str) -> str:
    """The URL of what lies in a folder.

    >>> join("s3://bucket/run/", "traces")
    's3://bucket/run/traces'
    """
    return f"{folder.rstrip('/')}/{name}"


def url_of(match: str, location: str, path: str) -> str:
    """The URL of what was found at a location, as that names its store: another form of it may lack the account.

    Args:
        match: What was found, as the file system names it.
        location: The URL that was asked for.
        path: The same as the file system names it.

    >>> url_of("runs/zero1/run.json", "abfs://runs@account.dfs.core.windows.net/zero1/", "runs/zero1")
    'abfs://runs@account.dfs.core.windows.net/zero1/run.json'
    """
    typed, named, parts = (text.rstrip("/").split("/") for text in (location, path, match))
    alike = 0
    while alike < min(len(typed), len(named)) and typed[-1 - alike] == named[-1 - alike]:
        alike += 1
    return "/".join([*typed[: len(typed) - alike], *parts[len(named) - alike :]])


def locate(location: str) -> tuple[AbstractFileSystem, str]:
    """The file system of a URL, and the path in it.

    Raises:
        SourceError: It cannot be reached.
        UsageError: Nothing that is installed opens it, or it contains a password.
    """
    if _has_password(location):
        shown = location.partition(_URL)[0] + _URL + location.rpartition("@")[2]
        source = "credentials come from the environment or from files, as the store's own tools take them"
        raise UsageError(f"{shown} was given with a password, which every report would print", hint=source)
    try:
        import fsspec  # an optional dependency
    except ImportError:
        raise UsageError(f"{location} is a URL, which needs fsspec", hint="pip install fsspec") from None
    logging = import_module(_LOGGING)
    for library in _TALKATIVE:
        if not logging.getLogger(library).handlers:
            logging.getLogger(library).addHandler(logging.NullHandler())
    # A listing of this process may be hours old, and lacks what a store lists late.
    try:
        filesystem, path = fsspec.core.url_to_fs(location, use_listings_cache=False)
    except ImportError as error:
        extra = _EXTRAS.get(location.partition(_URL)[0])
        hint = None if extra is None else f"pip install 'perfscope-toolkit[{extra}]'"
        raise UsageError(f"{location} cannot be opened: {without_secrets(str(error))}", hint=hint) from None
    except ValueError as error:  # of a protocol that nobody knows, or a library that was told too little
        raise UsageError(f"{location} cannot be opened: {without_secrets(str(error))}") from None
    except failures() as error:
        raise SourceError(location, f"cannot be opened: {describe(error)}") from None
    return filesystem, path


def _has_password(location: str) -> bool:
    try:
        return urlsplit(location).password is not None
    except ValueError:  # no URL of the internet, and so nothing with a password
        return False
