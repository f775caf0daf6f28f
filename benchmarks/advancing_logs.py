"""Long logs made of whole excerpts, one behind the other, in which time goes on: for records of any shape.

Steps, samples, dates and clocks go on from excerpt to excerpt as they do within one; all else, lines that are no
records included, is as the excerpt has it, but for what a job prints once. The length of a bar becomes one that is not
reached.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime, timedelta

from perfscope.constants import S_PER_DAY, S_PER_HOUR

_LENGTH = "90000000"
#: Between two excerpts where one has a single value.
_USUAL = 10
_FORM = "%Y-%m-%d %H:%M:%S"
_DATE = r"\d{4}-\d\d-\d\d \d\d:\d\d:\d\d"
#: What a job says before its first step.
_HEAD = re.compile(r"(?:\[before the start of training step\][^\n]*\n)*")
_COUNTERS = re.compile(
    r"iteration(?P<iteration> +\d+)/|consumed samples:(?P<samples> +\d+)|"
    r"(?P<bar>\d+)/(?P<length>\d+) \[(?P<clock>\d[\d:]*\d)<|(?P<named>\d+)\|Loss|"
    rf"global_step/max_steps': '(?P<step>\d+)/|elapsed_time': '(?P<elapsed>[\dhms ]+)'|(?P<date>{_DATE})"
)


def _read_clock(text: str) -> int:
    seconds = 0
    for part in text.split(":"):
        seconds = 60 * seconds + int(part)
    return seconds


def _write_clock(seconds: int) -> str:
    hours = f"{seconds // S_PER_HOUR}:" if seconds >= S_PER_HOUR else ""
    return f"{hours}{seconds // 60 % 60:02d}:{seconds % 60:02d}"


def _read_elapsed(text: str) -> int:
    return sum(int(part[:-1]) * {"h": S_PER_HOUR, "m": 60, "s": 1}[part[-1]] for part in text.split())


def _write_elapsed(seconds: int) -> str:
    days = f"{seconds // S_PER_DAY}d " if seconds >= S_PER_DAY else ""
    return f"{days}{seconds // S_PER_HOUR % 24}h {seconds // 60 % 60}m {seconds % 60}s"


def _read_date(text: str) -> int:
    return int((datetime.strptime(text, _FORM) - datetime(1970, 1, 1)).total_seconds())


def _write_date(seconds: int) -> str:
    return f"{datetime(1970, 1, 1) + timedelta(seconds=seconds):{_FORM}}"


_WORDS: dict[str, tuple[Callable[[str], int], Callable[[int], str]]] = {
    "clock": (_read_clock, _write_clock),
    "elapsed": (_read_elapsed, _write_elapsed),
    "date": (_read_date, _write_date),
}


@dataclass(frozen=True, slots=True)
class AdvancingLog:
    """An excerpt that goes on.

    Attributes:
        name: The excerpt.
        head: What it says once.
        texts: What stands between its counters.
        counters: The name of each counter, its value and its width.
        spans: How far each kind goes on from excerpt to excerpt.
    """

    name: str
    head: str
    texts: tuple[str, ...]
    counters: tuple[tuple[str, int, int], ...]
    spans: dict[str, int]

    def text(self, size: int) -> str:
        """At least so many characters."""
        parts: list[str] = []
        number, length = 0, 0
        while len(self.head) + length < size:
            for text, (name, value, width) in zip(self.texts, self.counters, strict=False):
                write = _WORDS[name][1] if name in _WORDS else str
                figure = _LENGTH if name == "length" else write(value + number * self.spans[name])
                parts += (text, figure.rjust(width) if name in {"iteration", "samples"} else figure)
            parts.append(self.texts[-1])
            number += 1
            length = sum(map(len, parts[: 2 * len(self.counters) + 1])) * number
        return "".join((self.head, *parts))


def advancing_log(name: str, text: str) -> AdvancingLog | None:
    """The log of an excerpt; None where nothing in it counts."""
    texts: list[str] = []
    counters: list[tuple[str, int, int]] = []
    head = _HEAD.match(text)
    offset = begin = head.end() if head else 0
    for match in _COUNTERS.finditer(text, begin):
        for kind, figure in match.groupdict().items():
            if figure is not None:
                read = _WORDS[kind][0] if kind in _WORDS else int
                texts.append(text[offset : match.start(kind)])
                counters.append((kind, read(figure), len(figure)))
                offset = match.end(kind)
    texts.append(text[offset:])
    spans = {}
    for kind in {kind for kind, _, _ in counters}:
        values = sorted({value for other, value, _ in counters if other == kind})
        spans[kind] = (values[-1] - values[0]) * len(values) // (len(values) - 1) if len(values) > 1 else _USUAL
    return AdvancingLog(name, text[:begin], tuple(texts), tuple(counters), spans) if counters else None
