"""The header of a file of partials: whose they are, and what they are worth."""

from __future__ import annotations

import os
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from perfscope.constants import KIB
from perfscope.sources.stores.location import is_url
from perfscope.sources.traces.files import open_small, open_trace
from perfscope.wire.traces import TraceMetadata, file_name

if TYPE_CHECKING:
    from hashlib import _Hash

SCHEMA = "perfscope/partials/1"
_HASHES = "hashlib"
_BLOCK_BYTES = 256 * KIB
_ENDING_BYTES = 64


class Identity(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The content of a trace's file.

    Attributes:
        name: Its name, without folders.
        size: Its bytes.
        sha256: SHA-256 of them, in hexadecimal digits.
        ending: The last bytes, in hexadecimal digits; those of a gzip file hold a checksum of its content.
        modified_ns: When it was last changed; 0 where that is not known, as of a file behind a URL.
    """

    name: str
    size: int
    sha256: str
    ending: str = ""
    modified_ns: int = 0


class Section(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One section.

    Attributes:
        name: The analyzer; ``""`` for what is known of the trace.
        packed: Bytes in the file.
        unpacked: Bytes of MessagePack.
    """

    name: str
    packed: int
    unpacked: int


class Header(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The header.

    Attributes:
        schema: ``SCHEMA``.
        version: The version of perfscope that measured.
        code: A fingerprint of its code: partials of other code are not taken.
        traces: The trace; of two windows that were measured as one the light one, then the one with operators.
        events: Names of the kinds of events that were read.
        measured: The analyzers that measured it; one without a section has no partial.
        sections: The sections in their order.
        hooks: What the hooks wrote into the trace, for where it is not at hand.
        alike_without_grids: Analyzers whose partials would be the same if no grids of kernels had been read.
    """

    schema: str
    version: str
    code: str
    traces: tuple[Identity, ...]
    events: tuple[str, ...]
    measured: tuple[str, ...]
    sections: tuple[Section, ...]
    hooks: TraceMetadata | None = None
    alike_without_grids: tuple[str, ...] = ()


def sha256(content: bytes | memoryview = b"") -> _Hash:
    """What computes SHA-256; OpenSSL is loaded for it, which an analysis without partials does without."""
    digest: _Hash = import_module(_HASHES).sha256(content)
    return digest


def identify(location: str) -> Identity:
    """The identity of a trace, for which all of it is read.

    Raises:
        SourceError: It cannot be opened.
        OSError: It cannot be read.
    """
    digest, size, ending = sha256(), 0, b""
    modified_ns = _modified_ns(location)  # before it is read: who changes it meanwhile is noticed
    with open_trace(location) as file:
        block = memoryview(bytearray(_BLOCK_BYTES))
        while count := file.readinto(block):  # type: ignore[attr-defined]
            digest.update(block[:count])
            size += count
            ending = (ending + bytes(block[max(0, count - _ENDING_BYTES) : count]))[-_ENDING_BYTES:]
    return Identity(file_name(location), size, digest.hexdigest(), ending.hex(), modified_ns)


def is_still(identity: Identity, location: str) -> bool:
    """Whether a trace is the one of an identity.

    All of it is read to compare its hash, but where nobody changed it since it was measured, by size, ending and time;
    of one at a URL only size and ending are compared.

    Raises:
        SourceError: It cannot be opened.
        OSError: It cannot be read.
    """
    is_stored = is_url(location)
    with open_small(location) as file:
        size = file.seek(0, os.SEEK_END)
        if size != identity.size:
            return False
        file.seek(max(0, size - _ENDING_BYTES))
        if file.read(_ENDING_BYTES).hex() != identity.ending:
            return False
        modified_ns = 0 if is_stored else os.fstat(file.fileno()).st_mtime_ns
    if is_stored or identity.modified_ns == modified_ns != 0:
        return True
    return identify(location).sha256 == identity.sha256


def _modified_ns(location: str) -> int:
    return 0 if is_url(location) else Path(location).stat().st_mtime_ns
