"""Why a store gave no answer, in words that hold no secret."""

from __future__ import annotations

import errno
import re
import sys

from perfscope.sources.stores.secrets import without_secrets

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
_MOST_CHARACTERS = 300
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
    reason = without_secrets(_QUERY.sub("", " ".join(str(text).split())))[:_MOST_CHARACTERS]
    if isinstance(error, FileNotFoundError):
        return "its bucket does not exist" if _BUCKET.search(reason) and "key" not in reason else "it does not exist"
    if isinstance(error, PermissionError):
        return f"access is denied: {reason}"
    if isinstance(error, OSError) and error.errno == errno.EBUSY:
        return f"the store refused it each time that it was asked: {reason}"
    return reason
