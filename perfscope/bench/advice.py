"""Which row to take: the fastest that fits, the one that needs the least energy, and those that no other row beats."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from perfscope.bench.rows import Row, compare_rows
from perfscope.constants import GB, MS_PER_S
from perfscope.report import Json, percent

#: A share of the step that is worth a word.
_NOTABLE_SHARE = 0.05
#: A row that is so many times as slow as the fastest looks slower, also where its trainings differ too much to show it.
_LOOKS_SLOWER = 1.1
_SHARE_NAMES = {
    "exposed_communication": "waiting for communication",
    "exposed_copy": "waiting for copies",
    "idle": "an idle GPU",
}


@dataclass(frozen=True, slots=True)
class Advice:
    """What the rows say together.

    Attributes:
        fastest: The row with the highest throughput that fits; None where none was measured.
        as_fast: Rows of which it is not shown that the fastest is faster.
        cheapest: The row with the least energy a sample; None where energy was not measured.
        front: Rows than which no other needs both less time a sample and less memory, fastest first.
        fit_bytes: Memory of a device that a row must fit; None for the devices that were used.
    """

    fastest: Row | None
    as_fast: tuple[Row, ...]
    cheapest: Row | None
    front: tuple[Row, ...]
    fit_bytes: int | None

    def data(self) -> dict[str, Json]:
        """The advice for JSON."""
        return {
            "fastest": self.fastest.variant.key if self.fastest else None,
            "as_fast": [row.variant.key for row in self.as_fast],
            "cheapest": self.cheapest.variant.key if self.cheapest else None,
            "pareto_front": [row.variant.key for row in self.front],
            "fit_bytes": self.fit_bytes,
        }


def advise(rows: Sequence[Row], fit_bytes: int | None = None) -> Advice:
    """Choose among the rows that were measured."""
    fitting = [row for row in rows if row.trainings and _fits(row, fit_bytes)]
    fastest = max(fitting, key=lambda row: row.samples_per_s or 0.0, default=None)
    as_fast = []
    for row in fitting:
        ratio = compare_rows(fastest, row) if fastest is not None and row is not fastest else None
        if ratio is not None and ratio.differs is False:
            as_fast.append(row)
    measured = [(row.joules_per_sample, row) for row in fitting if row.joules_per_sample is not None]
    cheapest = min(measured, key=lambda pair: pair[0], default=(None, None))[1]
    return Advice(fastest, tuple(as_fast), cheapest, tuple(find_front(fitting)), fit_bytes)


def find_front(rows: Sequence[Row]) -> Iterator[Row]:
    """The rows than which no other is both faster and smaller, fastest first."""
    placed = [
        (row.samples_per_s, row.largest_memory_bytes, row)
        for row in rows
        if row.samples_per_s is not None and row.largest_memory_bytes is not None
    ]
    least: int | None = None
    for _, memory, row in sorted(placed, key=lambda place: (-place[0], place[1])):
        if least is None or memory < least:
            least = memory
            yield row


def explain(row: Row, first: Row) -> str:
    """Why a row is as fast and as large as it is, from its profiled step and its figures beside the first row's."""
    parts = []
    for part, words in _SHARE_NAMES.items():
        share = row.mean_of("shares", part)
        if share is not None and share >= _NOTABLE_SHARE:
            parts.append(f"{percent(share):.0f} % of its step is {words}")
    bubble, overlap = row.mean("bubble"), row.mean("overlap")
    if bubble is not None and bubble >= _NOTABLE_SHARE:
        parts.append(f"{percent(bubble):.0f} % of the pipeline's time is bubble")
    if overlap is not None:
        parts.append(f"computation hides {percent(overlap):.0f} % of its communication")
    memory, first_memory = row.largest_memory_bytes, first.largest_memory_bytes
    if memory is not None and first_memory and row is not first:
        change = f"{memory / first_memory - 1:+.0%}"
        words = f"{change[1:]} {'more' if change[0] == '+' else 'less'}" if change[1:] != "0%" else "as much"
        parts.append(f"its fullest device needs {memory / GB:.2f} GB, {words}")
    return "; ".join([*parts, *row.findings[:1]]) or "nothing but computation was seen"


def advice_lines(advice: Advice, rows: Sequence[Row], names: dict[str, str]) -> Iterator[str]:
    """The advice in sentences."""
    first = next((row for row in rows if row.trainings), None)
    if advice.fastest is None or first is None:
        yield "No row was measured" + (" that fits." if advice.fit_bytes else ".")
        return
    limit = "" if advice.fit_bytes is None else f" that fits {advice.fit_bytes / GB:g} GB"
    fastest = advice.fastest
    step_ms = (fastest.step_s or 0.0) * MS_PER_S
    yield (
        f"Fastest{limit}: {names[fastest.variant.key]}, {fastest.samples_per_s:.1f} samples/s "
        f"({step_ms:.1f} ms a step): {explain(fastest, first)}."
    )
    yield from _as_fast_lines(advice, fastest.samples_per_s or 0.0, names)
    if advice.cheapest is not None:
        joules = advice.cheapest.joules_per_sample
        trained, known = (sum(1 for row in rows if is_there(row)) for is_there in (_is_trained, _has_energy))
        among = "" if known == trained else f" among the {known} of {trained} rows that have one"
        yield f"Least energy{among}: {names[advice.cheapest.variant.key]}, {joules:.3g} J a sample."
    places = [f"{names[row.variant.key]} ({(row.largest_memory_bytes or 0) / GB:.2f} GB)" for row in advice.front]
    if places:
        yield f"No other row is both faster and smaller than these, fastest first: {', '.join(places)}."


def _is_trained(row: Row) -> bool:
    return row.samples_per_s is not None


def _has_energy(row: Row) -> bool:
    return row.joules_per_sample is not None


def _as_fast_lines(advice: Advice, fastest: float, names: dict[str, str]) -> Iterator[str]:
    """Rows that are not shown to be slower: those that are about as fast, and those with too few trainings to tell."""
    times = [(names[row.variant.key], fastest / row.samples_per_s) for row in advice.as_fast if row.samples_per_s]
    close = [name for name, slower in times if slower < _LOOKS_SLOWER]
    if close:
        yield f"Not shown to be slower: {', '.join(close)}."
    unsure = [f"{name} ({slower:.1f} times)" for name, slower in times if slower >= _LOOKS_SLOWER]
    if unsure:
        yield f"Looked slower, but the trainings are too few or too different to show it: {', '.join(unsure)}."


def _fits(row: Row, fit_bytes: int | None) -> bool:
    return fit_bytes is None or (row.largest_memory_bytes or 0) <= fit_bytes
