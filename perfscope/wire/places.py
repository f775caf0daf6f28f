"""Where the training thread of a process was seen: ``places.json``."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Place:
    """A line of the script, and how often it was seen.

    Attributes:
        function: The innermost function that is of no library; empty where all are.
        file: Its file, from the working directory.
        calls: The library's function that it called; empty where it called none in Python.
        usual, long: How often it was seen in usual steps, and in those that took longer.
    """

    function: str
    file: str
    line: int
    calls: str
    usual: int
    long: int

    @property
    def name(self) -> str:
        """The file and line, with the function where it is in one."""
        line = f"{self.file}:{self.line}"
        return line if self.function == "<module>" else f"{self.function} ({line})"


@dataclass(frozen=True)
class PlacesRecord:
    """All places; what is usual is described in ``hooks/places.py``."""

    places: tuple[Place, ...]
