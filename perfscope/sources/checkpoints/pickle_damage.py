"""The error of a pickle that cannot be read, with what it would have called until then."""

from __future__ import annotations


class PickleDamage(Exception):
    """The bytes are no complete pickle, or more than should be read; the text is the problem.

    Attributes:
        names: Functions that loading it would have called or looked up before the damage.
    """

    def __init__(self, text: str, names: frozenset[str] = frozenset()) -> None:
        super().__init__(text)
        self.names = names
