"""The speed of a configuration that was run several times: median and mean, and the speed-up of the medians.

Exact decimals, so that a published digit is either right or not.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from statistics import mean, median

from perfscope.analyzers.published.derived import exact_interval
from perfscope.analyzers.published.verdicts import Verdict, format_rounded, judge
from perfscope.errors import MissingInput
from perfscope.report import Cell, Column, Json, Section
from perfscope.tables.published import Figure, PublishedTable, Quantity

_STATISTICS = ("mean", "median", "speed-up")
_DECIMALS = 2


@dataclass(frozen=True, slots=True)
class Configuration:
    """One configuration.

    Attributes:
        name: The GPUs of its runs, as printed: ``4n8g``.
        gpus: Its GPUs.
        runs: How many runs there are.
        values: Mean and median speed, and the median's speed-up, exactly.
        published: Published statistics.
    """

    name: str
    gpus: int
    runs: int
    values: Mapping[str, Fraction]
    published: Mapping[str, Figure]

    def verdict(self, statistic: str) -> Verdict | None:
        """How a published statistic compares with the exact one; None if it was not published."""
        figure = self.published.get(statistic)
        return judge(figure, exact_interval(self.values[statistic])) if figure else None


@dataclass(frozen=True, slots=True)
class RepeatedRuns:
    """Every configuration, by GPUs."""

    configurations: tuple[Configuration, ...]

    def data(self) -> Json:
        """The value of ``results.runs``."""
        return {
            configuration.name: {
                "gpus": configuration.gpus,
                "runs": configuration.runs,
                **{name: float(value) for name, value in configuration.values.items()},
                "published": {name: float(figure.number) for name, figure in configuration.published.items()},
                "verdicts": {name: str(configuration.verdict(name)) for name in configuration.published},
            }
            for configuration in self.configurations
        }

    def sections(self) -> tuple[Section, ...]:
        """One row per configuration."""
        published = any(configuration.published for configuration in self.configurations)
        names = ["Configuration", "GPUs", "Runs"]
        for statistic in _STATISTICS:
            names += [statistic.capitalize(), *(["published"] if published else [])]
        rows = tuple(self._row(configuration, published=published) for configuration in self.configurations)
        columns = tuple(Column(name) for name in [*names, *(["Verdict"] if published else [])])
        return (Section("Repeated runs", columns, rows, self._notes()),)

    def _row(self, configuration: Configuration, *, published: bool) -> tuple[Cell, ...]:
        cells: list[Cell] = [configuration.name, configuration.gpus, configuration.runs]
        for statistic in _STATISTICS:
            cells.append(format_rounded(configuration.values[statistic], _DECIMALS))
            if published:
                cells.append(configuration.published[statistic].text if statistic in configuration.published else None)
        if published:
            wrong = [
                f"{name}: {configuration.verdict(name)}"
                for name in configuration.published
                if configuration.verdict(name) is not Verdict.ROUNDED
            ]
            cells.append("; ".join(wrong) or ("agrees" if configuration.published else None))
        return tuple(cells)

    def _notes(self) -> tuple[str, ...]:
        most = max(configuration.runs for configuration in self.configurations)
        fewer = [
            f"{configuration.name} has {configuration.runs}"
            for configuration in self.configurations
            if configuration.runs < most
        ]
        notes = ["Speed-up is the median over the median of the fewest GPUs."]
        return (*notes, f"Not every configuration has {most} runs: {', '.join(fewer)}.") if fewer else tuple(notes)


def summarize_runs(runs: PublishedTable, published: PublishedTable | None = None) -> RepeatedRuns:
    """Summarize repeated runs.

    Args:
        runs: One row per run, with its GPUs (or ``4n8g``) and its rate.
        published: One row per configuration, with columns called mean, median and speed-up.

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
    baseline = median(groups[min(groups, key=lambda name: gpus[name])])
    published_by_name = _read_statistics(published)
    return RepeatedRuns(
        tuple(
            Configuration(name, gpus[name], len(rates), _statistics(rates, baseline), published_by_name.get(name, {}))
            for name, rates in sorted(groups.items(), key=lambda group: gpus[group[0]])
        )
    )


def _statistics(rates: Sequence[Fraction], baseline: Fraction) -> dict[str, Fraction]:
    middle = median(rates)
    return {"mean": mean(rates), "median": middle, "speed-up": middle / baseline}


def _read_statistics(table: PublishedTable | None) -> dict[str, dict[str, Figure]]:
    """The published statistics of each configuration, by the columns' headings."""
    if table is None:
        return {}
    columns = {heading.strip().lower(): index for index, heading in enumerate(table.headings)}
    statistics: dict[str, dict[str, Figure]] = {}
    for row in table.rows:
        if Quantity.GPUS in row.figures:
            numbers = {name: row.numbers[columns[name]] for name in _STATISTICS if name in columns}
            statistics[row.figures[Quantity.GPUS].text] = {name: number for name, number in numbers.items() if number}
    return statistics
