"""Lines that all ranks of a job print, each rank behind its own label or all without one."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class RankLines:
    """Lines that come once for each rank before the next one comes.

    Attributes:
        labels: The labels of the ranks, in the order in which they print each line; empty where they have none.
        lines: The lines with their ends, without labels.
    """

    labels: tuple[bytes, ...]
    lines: Sequence[bytes]

    @property
    def names(self) -> tuple[bytes | None, ...]:
        """The labels as lines have them: None where there is none."""
        return tuple(label or None for label in self.labels)

    @property
    def of_first_rank(self) -> bytes:
        """What the first rank prints."""
        label = self.labels[0]
        return b"".join([label + line for line in self.lines]) if label else b"".join(self.lines)

    @property
    def of_all_ranks(self) -> bytes:
        """What all ranks print."""
        if not any(self.labels):
            return b"".join([line * len(self.labels) for line in self.lines])
        return b"".join([label + line for line in self.lines for label in self.labels])

    def of_same_ranks(self, text: bytes) -> bytes:
        """What all ranks print where the first one prints a text."""
        label, lines = len(self.labels[0]), text.split(b"\n")
        lines = lines[:-1] if not lines[-1] else lines
        return RankLines(self.labels, [line[label:] + b"\n" for line in lines]).of_all_ranks

    def __len__(self) -> int:
        """How many bytes all ranks print."""
        return len(self.labels) * sum(map(len, self.lines)) + len(self.lines) * sum(map(len, self.labels))
