"""Which events have lost their phase or their category by damage, so that no analysis would see them.

A flipped bit makes ``kernel`` another word that is valid JSON. An exporter's own words are not damage: only what
differs from an expected word by one letter is.
"""

from __future__ import annotations

from collections.abc import Mapping

from perfscope.sources.traces.records import KIND

#: The phases of the format's events (Chrome's trace event format) but for complete ones, X, and samples, P.
PHASES = frozenset("sftiIMCBEbenNDOSTFpRcavV()")
_COMPLETE = "X"
_KEYS = "ph", "cat"
_REPLACEMENT = "\N{REPLACEMENT CHARACTER}"


def is_damaged(event: Mapping[str, object]) -> bool:
    """Whether an event would be read but for damage.

    >>> is_damaged({"ph": "X", "cat": "kernem", "ts": 1, "dur": 2}), is_damaged({"ph": "X", "cat": "my_tool"})
    (True, False)
    """
    for key in _KEYS:
        if key not in event and any(_differ_by_one_letter(other, key) for other in event):
            return True
    phase, category = event.get("ph"), event.get("cat", "")
    if phase == _COMPLETE:
        return (
            isinstance(category, str)
            and category not in KIND
            and any(_differ_by_one_letter(category, known) for known in KIND)
        )
    is_span = "dur" in event and "ts" in event
    if phase in PHASES:
        return is_span and category in KIND
    return is_span or category in KIND


def _differ_by_one_letter(word: str, expected: str) -> bool:
    if len(word) != len(expected):
        return False
    differing = [(ours, theirs) for ours, theirs in zip(word, expected, strict=True) if ours != theirs]
    if len(differing) != 1:
        return False
    ours, theirs = differing[0]
    return ours == _REPLACEMENT or not ours.islower() or (ord(ours) ^ ord(theirs)).bit_count() == 1
