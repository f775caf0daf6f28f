"""What measured the operations of a step, compared with the formulas: a log's own figure, or the shapes of a trace."""

from __future__ import annotations

from typing import NamedTuple

from perfscope.report import Json


class Comparison(NamedTuple):
    """A measurement compared with the formulas.

    Attributes:
        data: The value of ``log`` or ``trace`` in JSON.
        notes: The same in sentences.
        convention: The convention that explains a log's figure; None where none does.
    """

    data: Json
    notes: tuple[str, ...]
    convention: str | None = None
