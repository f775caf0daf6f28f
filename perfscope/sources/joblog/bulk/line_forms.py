"""What may stand in the places of a line's numbers and blanks: found by trying what the rule of the line still reads.

A rule may want one blank where another takes several, whole numbers or any, and so many characters between two words. A
line that has the shape of a record is read without its rule, so that its shape must not hold more than the rule reads.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass

#: What a column may be: a count, or a number.
INTEGER = r"\d{1,15}"
NUMBER = r"[\d.eE+-]+"

_ODD_NUMBER = "-1.2e+3E.4-5"
_ODD_DECIMAL = "1.2.34.56.78"
_LENGTHS = (24, 20, 15, 12)
_COUNT_LENGTHS = (15, 12, 9, 7, 6, 4, 3, 2)
_BLANKS = (12, 9, 4, 2)


@dataclass(frozen=True, slots=True)
class Form:
    """What may stand in a place.

    Attributes:
        pattern: A regular expression of text.
        examples: Texts that it matches, the longest first, all of which the rule must read; where there are none, it is
            taken without a try.
    """

    pattern: str
    examples: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Piece:
    """A part of a line.

    Attributes:
        text: What it is in the line that was looked at.
        forms: What it may be elsewhere, from the widest to the narrowest; nothing else where there are none.
        name: The name of its column.
    """

    text: str
    forms: tuple[Form, ...] = ()
    name: str = ""


def _number_forms() -> tuple[Form, ...]:
    any_sign = [Form(rf"[\d.eE+-]{{1,{n}}}", (_ODD_NUMBER.ljust(n, "6"), "-", "e", "+5")) for n in _LENGTHS]
    decimals = [Form(rf"[\d.]{{1,{n}}}", (_ODD_DECIMAL.ljust(n, "6"), ".", "5.", ".5")) for n in _LENGTHS]
    parts = (
        Form(
            r"[-+]?\d{1,9}(?:\.\d{1,9})?(?:[eE][-+]?\d{1,3})?",
            ("-123456789.123456789e-123", "+5", "1.5E5", "1e+2"),
        ),
        Form(r"\d{1,9}(?:\.\d{1,9})?(?:[eE][-+]?\d{1,3})?", ("123456789.123456789e-123", "5", "1.5E5", "1e+2")),
        Form(r"-?\d{1,9}(?:\.\d{1,9})?", ("-123456789.123456789", "5")),
        Form(r"\d{1,9}(?:\.\d{1,9})?", ("123456789.123456789", "5")),
        Form(r"\d{1,6}(?:\.\d{1,6})?", ("123456.123456", "5")),
        Form(r"\d{1,9}\.\d{1,9}", ("123456789.123456789", "5.5")),
        Form(r"\d{1,6}\.\d{1,6}", ("123456.123456", "5.5")),
        Form(r"\d{1,4}\.\d{1,4}", ("1234.1234", "5.5")),
    )
    return (*any_sign, *decimals, *parts, *_count_forms())


def _count_forms() -> tuple[Form, ...]:
    return tuple(Form(rf"\d{{1,{n}}}", ("123456789012345"[:n], "0")) for n in _COUNT_LENGTHS)


#: Forms of numbers, counts, blanks, and clocks such as ``1:02:03``.
NUMBERS = _number_forms()
COUNTS = _count_forms()
BLANKS = tuple(Form(f" {{1,{n}}}", (" " * n, " ")) for n in _BLANKS)
CLOCKS = (
    Form(r"\d[\d:]{0,11}", ("123:45:67890", "7", "1:")),
    Form(r"\d{1,4}(?::\d\d){1,3}", ("1234:56:07:08", "1:00")),
    Form(r"\d{1,2}(?::\d\d){2}", ("12:34:56", "1:00:00")),
    Form(r"\d{1,2}:\d\d", ("12:34", "1:00")),
)
_FORMS_OF_COLUMNS = {NUMBER: NUMBERS, INTEGER: COUNTS}


def forms_of_column(text: str) -> tuple[Form, ...]:
    """What a column may be that a format describes by a regular expression; one of its own is taken at its word."""
    return _FORMS_OF_COLUMNS.get(text) or (Form(text),)


def choose_forms(pieces: Sequence[Piece], is_read: Callable[[Sequence[str]], bool]) -> list[Form | None]:
    """The widest form of each piece with which the rule still reads the line.

    Args:
        pieces: The parts of a line that the rule reads.
        is_read: Whether the rule reads a line of such texts, and in it the same columns at the same places.

    Returns:
        None for a piece that may be its text alone.
    """
    texts = [piece.text for piece in pieces]
    widest_first = [[form for form in piece.forms if re.fullmatch(form.pattern, piece.text)] for piece in pieces]
    level = [0 if forms else -1 for forms in widest_first]

    def take(chosen: Sequence[int]) -> bool:
        """Take the present forms of some pieces if the rule reads all their examples, the others as they are."""
        forms = [widest_first[number][level[number]] for number in chosen]
        before = [texts[number] for number in chosen]
        for example in range(max(len(form.examples) for form in forms) - 1, -1, -1):  # the longest remains
            for number, form in zip(chosen, forms, strict=True):
                texts[number] = form.examples[example % len(form.examples)]
            if not is_read(texts):
                for number, text in zip(chosen, before, strict=True):
                    texts[number] = text
                return False
        return True

    def settle(chosen: Sequence[int]) -> None:
        if not chosen or take(chosen):
            return
        if len(chosen) > 1:
            half = len(chosen) // 2
            settle(chosen[:half])
            settle(chosen[half:])
            return
        (number,) = chosen
        level[number] = level[number] + 1 if level[number] + 1 < len(widest_first[number]) else -1
        settle(chosen if level[number] >= 0 else ())

    settle([number for number, forms in enumerate(widest_first) if forms and forms[0].examples])
    return [forms[at] if at >= 0 else None for forms, at in zip(widest_first, level, strict=True)]
