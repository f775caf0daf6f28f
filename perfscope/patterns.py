"""Regular expressions that are compiled when they are first used.

A command imports the patterns of all analyzers, and searches with few of them. To compile one takes longer than to
search the names of a trace with it.
"""

from __future__ import annotations

import re
from typing import AnyStr, Generic, cast

_ATTRIBUTES = (
    "findall", "finditer", "flags", "fullmatch", "groupindex", "groups", "match", "pattern", "search", "split", "sub",
    "subn",
)  # fmt: skip


class _Later(Generic[AnyStr]):
    """A pattern that is not compiled yet."""

    def __init__(self, text: AnyStr, flags: int) -> None:
        self._text: AnyStr = text
        self._flags = flags

    def __getattr__(self, name: str) -> object:
        """An attribute of the pattern; from then on it is found without this function."""
        if name not in _ATTRIBUTES:
            raise AttributeError(name)
        compiled = re.compile(self._text, self._flags)
        vars(self).update((attribute, getattr(compiled, attribute)) for attribute in _ATTRIBUTES)
        return vars(self)[name]


def compile_later(text: AnyStr, flags: int = 0) -> re.Pattern[AnyStr]:
    r"""A pattern with the methods and the attributes of one that ``re.compile`` makes.

    An error in it is found when it is first used.

    >>> pattern = compile_later(r"\d+")
    >>> pattern.sub("n", "step 7"), pattern.pattern
    ('step n', '\\d+')
    """
    return cast("re.Pattern[AnyStr]", _Later(text, flags))
