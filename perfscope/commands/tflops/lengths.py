"""The lengths of sequences that attend within themselves: documents packed into one, or sequences that vary."""

from __future__ import annotations

import re
from math import inf
from pathlib import Path
from typing import NamedTuple

from perfscope.errors import UsageError
from perfscope.files import read_regular

_MEANS = re.compile(r"mean=([\d.e+]+)[,\s]+mean_square=([\d.e+]+)")
#: What is no path.
_IN_PLACE = re.compile(r"[-+\d.,\s]*$|mean=")
_HINT = "--lengths 512,1500,2084, a file of lengths, or mean=380,mean_square=210000"


class Lengths(NamedTuple):
    """The mean of the lengths and of their squares."""

    mean: float
    mean_square: float

    @property
    def attended_len(self) -> int:
        """The length in which a token's attention costs as much: the sum of the squares over the sum."""
        return max(1, round(self.mean_square / self.mean))

    def sentence(self, attention_len: int) -> str:
        """What is counted, in words."""
        return (
            f"attention within sequences of {self.mean:.6g} tokens on average, mean square {self.mean_square:.6g} "
            f"(--lengths): it counts as in sequences of {attention_len}"
        )


def parse_lengths(text: str) -> Lengths:
    """Read ``512,1500``, a file of numbers, or the two means; UsageError where these are no lengths."""
    content = text if _IN_PLACE.match(text) else _read(Path(text))
    try:
        if means := _MEANS.fullmatch(content.strip()):
            return _checked(Lengths(float(means[1]), float(means[2])))
        # Of more digits, which are as impossible, Python makes no number.
        lengths = [int(word[:99]) for word in re.split(r"[,\s]+", content.strip())]
    except ValueError:
        raise UsageError(f"--lengths: {text!r} is no list of lengths", hint=_HINT) from None
    if min(lengths) < 1:
        raise UsageError(f"--lengths: a sequence cannot have {min(lengths)} tokens", hint=_HINT)
    return _checked(Lengths(sum(lengths) / len(lengths), sum(length**2 for length in lengths) / len(lengths)))


def _read(path: Path) -> str:
    try:
        return read_regular(path).decode("utf-8", "replace")
    except (OSError, ValueError):
        raise UsageError(f"--lengths: {str(path)!r} is neither a list of lengths nor a file", hint=_HINT) from None


def _checked(lengths: Lengths) -> Lengths:
    if not 1 <= lengths.mean <= lengths.mean_square / lengths.mean * (1 + 1e-6) < inf:
        raise UsageError("--lengths: a mean square is at least the square of the mean, which is at least 1", hint=_HINT)
    return lengths
