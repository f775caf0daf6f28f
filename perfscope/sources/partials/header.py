"""The header of a file of partials: whose they are, and what they are worth."""

from __future__ import annotations

import hashlib

import msgspec

from perfscope.constants import MIB
from perfscope.sources.traces.files import open_trace
from perfscope.wire.traces import TraceMetadata, file_name

SCHEMA = "perfscope/partials/1"
_BLOCK_BYTES = MIB


class Identity(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The content of a trace's file.

    Attributes:
        name: Its name, without folders.
        size: Its bytes.
        sha256: SHA-256 of them, in hexadecimal digits.
    """

    name: str
    size: int
    sha256: str


class Section(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One section.

    Attributes:
        name: The analyzer; ``""`` for what is known of the trace.
        packed: Bytes in the file.
        unpacked: Bytes of MessagePack.
        regardless_of: Kinds of events without which the partial would be the same, besides those that never matter.
    """

    name: str
    packed: int
    unpacked: int
    regardless_of: tuple[str, ...] = ()


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
    """

    schema: str
    version: str
    code: str
    traces: tuple[Identity, ...]
    events: tuple[str, ...]
    measured: tuple[str, ...]
    sections: tuple[Section, ...]
    hooks: TraceMetadata | None = None


def identify(location: str) -> Identity:
    """The identity of a trace, for which all of it is read.

    Raises:
        SourceError: It cannot be opened.
        OSError: It cannot be read.
    """
    digest, size = hashlib.sha256(), 0
    with open_trace(location) as file:
        while block := file.read(_BLOCK_BYTES):
            digest.update(block)
            size += len(block)
    return Identity(file_name(location), size, digest.hexdigest())
