"""The speed of a configuration that was run several times: median and mean, and the speed-up of the medians.

Exact decimals, so that a published digit is either right or not.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction

from perfscope.analyzers.published.check import Verdict, judge, rounded
from perfscope.analyzers.published.derived import exactly
from perfscope.errors import MissingInput
from perfscope.report import Cell, Column, Json, Section
from perfscope.tables.published import Figure, PublishedTable, Quantity

_STATISTICS = ("mean", "median", "speed-up")
_DECIMALS = 2


@dataclass(frozen=True, slots=True)
class Configuration:
    """One configuration.

    Attributes:
        name: What its runs have in common, as printed: ``4n8g``.
        gpus: Its GPUs.
        runs: How many runs there are.
        values: Mean and median speed, and the median's speed-up, exactly.
        published: What was published of them.
    """

    name: str
    gpus: int
    runs: int
    values: Mapping[str, Fraction]
    published: Mapping[str, Figure]

    def verdict(self, statistic: str) -> Verdict | None:
        """How a published statistic stands to the exact one; None where none was published."""
        figure = self.published.get(statistic)
        return judge(figure, exactly(self.values[statistic])) if figure else None


@dataclass(frozen=True, slots=True)
class RepeatedRuns:
    """Every configuration, by GPUs."""

    configurations: tuple[Configuration, ...]

    def data(self) -> Json:
        """The value of ``results.runs``."""
        return {
            one.name: {
                "gpus": one.gpus,
                "runs": one.runs,
                **{name: float(value) for name, value in one.values.items()},
                "published": {name: float(figure.number) for name, figure in one.published.items()},
                "verdicts": {name: str(one.verdict(name)) for name in one.published},
            }
            for one in self.configurations
        }

    def sections(self) -> tuple[Section, ...]:
        """One row a configuration."""
        published = any(one.published for one in self.configurations)
        names = ["Configuration", "GPUs", "Runs"]
        for statistic in _STATISTICS:
            names += [statistic.capitalize(), *(["published"] if published else [])]
        rows = tuple(self._row(one, published=published) for one in self.configurations)
        columns = tuple(Column(name) for name in [*names, *(["Verdict"] if published else [])])
        return (Section("Repeated runs", columns, rows, self._notes()),)

    def _row(self, one: Configuration, *, published: bool) -> tuple[Cell, ...]:
        cells: list[Cell] = [one.name, one.gpus, one.runs]
        for statistic in _STATISTICS:
            cells.append(rounded(one.values[statistic], _DECIMALS))
            if published:
                cells.append(one.published[statistic].text if statistic in one.published else None)
        if published:
            wrong = [
                f"{name}: {one.verdict(name)}" for name in one.published if one.verdict(name) is not Verdict.ROUNDED
            ]
            cells.append("; ".join(wrong) or ("agrees" if one.published else None))
        return tuple(cells)

    def _notes(self) -> tuple[str, ...]:
        most = max(one.runs for one in self.configurations)
        fewer = [f"{one.name} has {one.runs}" for one in self.configurations if one.runs < most]
        notes = ["Speed-up is the median over the median of the fewest GPUs."]
        return (*notes, f"Not every configuration has {most} runs: {', '.join(fewer)}.") if fewer else tuple(notes)


def analyze(runs: PublishedTable, published: PublishedTable | None = None) -> RepeatedRuns:
    """Summarise repeated runs.

    Args:
        runs: One row a run, with its GPUs (``4n8g`` counts) and its rate.
        published: One row a configuration, with columns called mean, median and speed-up.

    Raises:
        MissingInput: No row states both GPUs and a rate.
    """
    groups: dict[str, list[Fraction]] = {}
    gpus: dict[str, int] = {}
    for row in runs.rows:
        if Quantity.GPUS in row.figures and Quantity.RATE in row.figures:
            name = row.figures[Quantity.GPUS].text
            groups.setdefault(name, []).append(row.figures[Quantity.RATE].number)
            gpus[name] = int(row.figures[Quantity.GPUS].number)
    if not groups:
        raise MissingInput("no row states GPUs and a rate")
    first = _median(groups[min(groups, key=lambda name: gpus[name])])
    stated = _published(published)
    return RepeatedRuns(
        tuple(
            Configuration(name, gpus[name], len(rates), _values(rates, first), stated.get(name, {}))
            for name, rates in sorted(groups.items(), key=lambda group: gpus[group[0]])
        )
    )


def _values(rates: Sequence[Fraction], first: Fraction) -> dict[str, Fraction]:
    median = _median(rates)
    return {"mean": sum(rates, Fraction(0)) / len(rates), "median": median, "speed-up": median / first}


def _median(values: Sequence[Fraction]) -> Fraction:
    ordered = sorted(values)
    middle = len(ordered) // 2
    return ordered[middle] if len(ordered) % 2 else (ordered[middle - 1] + ordered[middle]) / 2


def _published(table: PublishedTable | None) -> dict[str, dict[str, Figure]]:
    """The published statistics of each configuration, by the columns' headings."""
    if table is None:
        return {}
    columns = {heading.strip().lower(): index for index, heading in enumerate(table.headings)}
    found: dict[str, dict[str, Figure]] = {}
    for row in table.rows:
        if Quantity.GPUS in row.figures:
            numbers = {name: row.numbers[columns[name]] for name in _STATISTICS if name in columns}
            found[row.figures[Quantity.GPUS].text] = {name: number for name, number in numbers.items() if number}
    return found
