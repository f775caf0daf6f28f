"""Long logs of nothing but records, made of the published excerpts: their lines again and again, with other numbers.

Steps ascend by one, dates and clocks go on by the same time, and what a rule takes as the time of a step changes in its
last digits. All else is as the excerpt has it.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any

from benchmarks.log_excerpts import EXCERPTS
from perfscope.sources.joblog.bulk.cells import STAMP
from perfscope.sources.joblog.bulk.record_lines import LinesOfRecords, ShapeSplitter
from perfscope.sources.joblog.registry import FORMATS

_STEP_S = 7
_MICRO_BATCHES = 4
_CLOCKS = {"elapsed", "wall", STAMP}
_TIMES = {"ms", "seconds", "time"}
_FORMS = ("%Y-%m-%d %H:%M:%S", "%Y/%m/%d %H:%M:%S", "%Y-%m-%dT%H:%M:%S", "%Y/%m/%dT%H:%M:%S")


@dataclass(frozen=True, slots=True)
class RecordLog:
    """Lines of records of one excerpt.

    Attributes:
        name: The excerpt.
        framework: Who wrote it.
        kind: How the format reads them many at once.
        parts: The line, split at its figures.
        columns: The names of the figures.
    """

    name: str
    framework: str
    kind: LinesOfRecords[Any]
    parts: tuple[str, ...]
    columns: tuple[str, ...]

    def line(self, number: int) -> str:
        """The record of a step."""
        figures = [self._figure(name, text, number) for name, text in zip(self.columns, self.parts[1::2], strict=True)]
        return "".join(text + figure for text, figure in zip(self.parts[::2], [*figures, "\n"], strict=True))

    def text(self, records: int, first: int = 1) -> str:
        """Many records."""
        return "".join(map(self.line, range(first, first + records)))

    def _figure(self, name: str, text: str, number: int) -> str:
        if "ends" in self.columns and not self.parts[1 + 2 * self.columns.index("ends")]:  # of four micro-batches each
            figures = {"step": str(1 + (number - 1) // _MICRO_BATCHES), "ends": " (step)"}
            if name == "step" or (name == "ends" and number % _MICRO_BATCHES == 0):
                return figures[name]
        if name in {"step", "samples", "counted", "iter", "iteration"}:
            scale = int(self.parts[1 + 2 * self.columns.index("samples")]) if name == "samples" else 1
            return str(number * max(scale, 1))
        if name == "percent":
            return "1"
        if name in _CLOCKS:
            return _clock(text, number * _STEP_S)
        if name in _TIMES and "modded" not in self.name and "parameter-golf" not in self.name:
            # Detectron2's mean since the start settles.
            digit = number // 200 if self.framework == "detectron2" else number
            return text[:-1] + str(1 + digit % 9) if text[-1:].isdigit() else text
        return str(number * 100) if name == "ms" else text


def _clock(text: str, seconds: int) -> str:
    if re.fullmatch(r"\d+(\.\d+)?", text):
        return str(int(float(text)) + seconds)
    if re.fullmatch(r"\d{1,3}:\d\d:\d\d", text):
        return f"{seconds // 3600}:{seconds // 60 % 60:02d}:{seconds % 60:02d}"
    if re.fullmatch(r"[\d dhms]+", text) and text.endswith("s"):
        return f"{seconds // 86400}d {seconds // 3600 % 24}h {seconds // 60 % 60}m {seconds % 60}s"
    whole, comma, fraction = text.partition(",") if "," in text else text.partition(".")
    form = next(form for form in _FORMS if _fits(whole, form))
    return f"{datetime.strptime(whole, form) + timedelta(seconds=seconds):{form}}{comma}{fraction}"


def _fits(text: str, form: str) -> bool:
    try:
        datetime.strptime(text, form)
    except ValueError:
        return False
    return True


def record_logs() -> Iterator[RecordLog]:
    """One for each excerpt whose format reads many records at once by the shape of their lines."""
    for path in sorted(EXCERPTS.glob("*.log")):
        log = find_records(path.stem, path.read_bytes())
        if log is not None:
            yield log


def find_records(name: str, text: bytes) -> RecordLog | None:
    """The first record of a text that is read with many others; None without one."""
    for log_format in FORMATS:
        splits = [path.split for path in log_format.fast_paths]
        for kind in (kind for split in splits if isinstance(split, ShapeSplitter) for kind in split.kinds):
            for line in filter(kind.is_record, kind.rule.find(text)):
                shape = kind.shape_of(line)
                match = shape and shape.pattern.match(line.text + b"\n", line.line)
                if shape and match:
                    return RecordLog(name, str(log_format.framework), kind, tuple(_parts(match)), shape.columns)
    return None


def _parts(match: re.Match[bytes]) -> Iterator[str]:
    offset = match.start()
    for group in range(1, match.re.groups + 1):
        yield match.string[offset : match.start(group)].decode("latin-1")
        yield match[group].decode("latin-1")
        offset = match.end(group)
    yield match.string[offset : match.end() - 1].decode("latin-1")
