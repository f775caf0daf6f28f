"""The results of the other analyzers as one document of JSON: each figure of a finding has a pointer into it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from msgspec import Struct

from perfscope.report import Json


class Evidence(Struct, frozen=True):
    """One fact behind a finding.

    Attributes:
        text: The fact in words.
        pointers: JSON pointers into ``results`` to the figures that it rests on.
    """

    text: str
    pointers: tuple[str, ...] = ()

    def data(self) -> dict[str, Json]:
        """One entry of ``evidence``."""
        return {"text": self.text, "pointers": [f"/results{pointer}" for pointer in self.pointers]}


class Facts:
    """Results by JSON pointers.

    Args:
        results: The data of each analyzer by its name.
    """

    def __init__(self, results: Mapping[str, Json]) -> None:
        self._results = results

    def value(self, pointer: str) -> Json:
        """What a pointer leads to, such as ``/steps/median_s``; None where it leads to nothing."""
        value: Json = self._results
        for part in pointer.split("/")[1:]:
            if isinstance(value, (dict, Mapping)):  # a dictionary is told faster than any mapping
                value = value.get(part)
            elif isinstance(value, (list, tuple, Sequence)) and not isinstance(value, str) and part.isdigit():
                value = value[int(part)] if int(part) < len(value) else None
            else:
                return None
        return value

    def number(self, pointer: str) -> float | None:
        """A number; None where there is none."""
        value = self.value(pointer)
        return float(value) if isinstance(value, (int, float)) and not isinstance(value, bool) else None

    def amount(self, pointer: str) -> float:
        """A number, or 0 where there is none: for times of what was not seen."""
        return self.number(pointer) or 0.0

    def text(self, pointer: str) -> str:
        """A text; empty where there is none."""
        value = self.value(pointer)
        return value if isinstance(value, str) else ""

    def is_true(self, pointer: str) -> bool:
        """Whether there is a value that is true."""
        return self.value(pointer) is True

    def rows(self, pointer: str) -> list[str]:
        """The pointers of a list's entries; none where there is no list."""
        value = self.value(pointer)
        if not isinstance(value, Sequence) or isinstance(value, str):
            return []
        return [f"{pointer}/{index}" for index in range(len(value))]

    def rank(self, pointer: str) -> int:
        """The rank of an entry; 0 where it states none."""
        return int(self.number(f"{pointer}/rank") or 0)
