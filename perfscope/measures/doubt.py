"""Figures that cannot be: they are withheld, with what contradicts them and what may be wrong.

A share of a peak or of a whole lies between 0 and 1, and a rate below the limit of the link that it went over. A figure
outside is no measurement but the sign of a wrong input, so that it is absent, and a sentence says why.
"""

from __future__ import annotations

from typing import NamedTuple

#: Shares are quotients of floating-point numbers, whose last digits are not exact.
_ROUNDING = 1e-9
#: A datasheet's rate is rounded, clocks boost, and a counter is not read at the moment of its sample.
TOLERANCE = 0.02

#: What makes a utilisation impossible.
UTILISATION_CAUSES = (
    "another precision than the products ran in, another GPU, the operations of another model, or a batch, a number of "
    "GPUs or a step time that is not this run's"
)


class Checked(NamedTuple):
    """A figure that can be true, or None where it is unknown or withheld, and why it is withheld, as a sentence."""

    value: float | None
    doubt: str = ""


def check_share(share: float | None, what: str, causes: str, tolerance: float = _ROUNDING) -> Checked:
    """Withhold a share that is below 0 or above 1 by more than the measurement's own inexactness.

    >>> check_share(2.93, "the MFU", "another precision").doubt
    'Withheld: the MFU would be 293.0 %, which cannot be. What may be wrong: another precision.'
    """
    if share is None or -tolerance <= share <= 1 + tolerance:
        return Checked(None if share is None else min(max(share, 0.0), 1.0))
    return Checked(None, f"Withheld: {what} would be {share:.1%}".replace("%", " %") + _close(causes))


def check_rate(rate: float | None, limit: float | None, what: str, of_limit: str, causes: str) -> Checked:
    """Withhold a rate above the limit of what it went over; the limit is None where it is unknown.

    >>> check_rate(900.0, 450.0, "the busbw", "NVLink's 450 GB/s", "the size").doubt
    "Withheld: the busbw would be 900.0 GB/s, above NVLink's 450 GB/s, which cannot be. What may be wrong: the size."
    """
    if rate is None or limit is None or rate <= limit * (1 + TOLERANCE):
        return Checked(rate)
    return Checked(None, f"Withheld: {what} would be {rate:.1f} GB/s, above {of_limit}" + _close(causes))


def _close(causes: str) -> str:
    return f", which cannot be. What may be wrong: {causes}."
