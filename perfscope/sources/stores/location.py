"""URLs, and the file systems behind them.

Credentials are never part of a URL: each file system finds them as its own tools do, in the environment, in files of
the user, or from the machine.
"""

from __future__ import annotations

import errno
import re
import sys
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

from perfscope.errors import SourceError, UsageError

_HIDDEN = "***"
#: A text is cut here before it is searched: nobody reads more of a reason.
_MOST_CHARACTERS = 1_000
#: What a secret is called: in connection strings, URLs that are signed, files of credentials, headers, answers in XML.
_NAME = (
    r"[\w-]*?(?:(?:account|access|secret|api|private|storage|shared)[_-]?key(?:[_-]?id)?|credential|secret|token"
    r"|sharedaccesssignature|signature(?:provided)?|stringtosign|authorization|password|passwd|passphrase|\bpwd|\bsig)"
)
#: A scheme of a header before the value, which stands in quotes, and may hold blanks, or ends where a word does.
_VALUE = (
    r"(?:(?:bearer|basic|sharedkey(?:lite)?|token|aws4-hmac-sha256|aws)\s+)?"
    r"""(?:\\?"[^"]*"?|'[^']*'?|[^\s,;&'"<>{}()\[\]]+)"""
)
_NAMED = re.compile(rf"""(?i)((?<![\w-]){_NAME}\b\\?['"]?\s*(?:=>?|:|%3d)\s*){_VALUE}""")
_IN_TAGS = re.compile(rf"(?i)(<{_NAME}>)[^<]*")
_HEADER = re.compile(r"(?i)(\b(?:bearer|basic|sharedkey(?:lite)?)\s+)(?=[^\s,;'\"]*[\d=_./+:-])[^\s,;'\"]{8,}")
#: A port is no password, and a container of Azure's stands where a user does.
_OF_URL = re.compile(
    r"(?i)(\b[a-z][a-z\d+.]*://)[^\s'\"<>@:/]*:(?!\d+/)[^\s'\"<>]*@(?=[\w.\[-])"
    r"|(\b(?!abfs|wasb)[a-z][a-z\d+.]*://)[^\s'\"<>@:/]+@(?=[\w.\[-])"
)
_OF_HOST = re.compile(r"(?<![\w/@:.+%-])[\w.%+-]+:[^\s'\"@/]+@(?=[\w.\[-])")
#: Keys and tokens that are told by their own form: of AWS, of Google, a JSON Web Token, PEM.
_BARE = re.compile(
    r"\b(?:AKIA|ASIA)[A-Z0-9]{12,}\b|\bya29\.[\w.-]+|\beyJ[\w-]{4,}\.[\w-]+(?:\.[\w-]*)?"
    r"|-----BEGIN [A-Z ]*PRIVATE KEY-----(?s:.*?)(?:-----END [A-Z ]*PRIVATE KEY-----|\Z)"
)


def without_secrets(text: str) -> str:
    """A text in which keys, signatures, tokens and passwords are replaced by three asterisks.

    >>> without_secrets("https://me:pass@host/x?sig=abc; AccountKey=abc==;Protocol=https")
    'https://***@host/x?sig=***; AccountKey=***;Protocol=https'
    """
    text = _BARE.sub(_HIDDEN, text[:_MOST_CHARACTERS])
    text = _OF_HOST.sub(f"{_HIDDEN}@", _OF_URL.sub(rf"\1\2{_HIDDEN}@", text))
    for pattern in (_NAMED, _IN_TAGS, _HEADER):
        text = pattern.sub(rf"\1{_HIDDEN}", text)
    return text


#: The errors of libraries that are none of Python's: the module, and the base of its errors.
_FOREIGN = (
    ("botocore.exceptions", "BotoCoreError"),
    ("botocore.exceptions", "ClientError"),
    ("azure.core.exceptions", "AzureError"),
    ("google.auth.exceptions", "GoogleAuthError"),
    ("gcsfs.retry", "HttpError"),
    ("aiohttp.client_exceptions", "ClientError"),
    ("paramiko.ssh_exception", "SSHException"),
)
_NO_CREDENTIALS = re.compile(r"(?i)credential|authentication")
_BUCKET = re.compile(r"(?i)bucket")
_QUERY = re.compile(r"\?[^\s'\"]*")
_NONE_GIVEN = (
    "no credentials were found; give them as the store's own tools take them (for S3: the AWS_* variables, ~/.aws; for "
    "Azure: the AZURE_STORAGE_* variables)"
)


def failures() -> tuple[type[Exception], ...]:
    """What a file system may raise; the libraries that are not in use raise nothing."""
    modules = ((sys.modules.get(module), name) for module, name in _FOREIGN)
    return (OSError, *(getattr(module, name) for module, name in modules if hasattr(module, name)))


def describe(error: Exception) -> str:
    """The reason of a failure, in a line."""
    if _NO_CREDENTIALS.search(type(error).__name__):
        return _NONE_GIVEN
    text = getattr(error, "strerror", None) or str(error) or type(error).__name__
    reason = without_secrets(_QUERY.sub("", " ".join(str(text).split())))
    if isinstance(error, FileNotFoundError):
        return "its bucket does not exist" if _BUCKET.search(reason) and "key" not in reason else "it does not exist"
    if isinstance(error, PermissionError):
        return f"access is denied: {reason}"
    if isinstance(error, OSError) and error.errno == errno.EBUSY:
        return f"the store refused it each time that it was asked: {reason}"
    return reason


if TYPE_CHECKING:  # an optional dependency
    from fsspec import AbstractFileSystem

_URL = "://"
#: What opens the URLs of a protocol, as an extra of this distribution.
_EXTRAS = {
    "s3": "s3", "s3a": "s3", "gs": "gcs", "gcs": "gcs", "abfs": "abfs", "abfss": "abfs", "az": "abfs", "adl": "abfs",
}  # fmt: skip
#: The libraries that write what they try to standard error, where nobody set up logging: an error says it here.
_TALKATIVE = ("azure",)


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

    ``match`` is what was found, and ``path`` the location, as the file system names them.

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

    Raises SourceError: it cannot be reached. UsageError: nothing that is installed opens it, or it has a password.
    """
    if _has_password(location):
        shown = location.partition(_URL)[0] + _URL + location.rpartition("@")[2]
        source = "credentials come from the environment or from files, as the store's own tools take them"
        raise UsageError(f"{shown} was given with a password, which every report would print", hint=source)
    try:
        import fsspec  # an optional dependency
    except ImportError:
        raise UsageError(f"{location} is a URL, which needs fsspec", hint="pip install fsspec") from None
    import logging  # nothing else needs it at a start

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
