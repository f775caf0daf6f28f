"""Results whose JSON is made once, for the findings, which look into all of it, and for the report."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cached_property

from perfscope.engine.registry import Result
from perfscope.report import Json, Section


class WrittenOnce:
    """A result that writes itself as JSON when it is first asked to.

    Nobody may change what it gives: the next one who asks gets the same.
    """

    def __init__(self, result: Result) -> None:
        self.result = result

    @cached_property
    def _data(self) -> Json:
        return self.result.data()

    def data(self) -> Json:
        """The result's data."""
        return self._data

    def sections(self) -> tuple[Section, ...]:
        """The result's sections."""
        return self.result.sections()

    @property
    def is_written(self) -> bool:
        """Whether somebody asked for its data."""
        return "_data" in vars(self)


def still_written(written: Mapping[str, WrittenOnce], results: Mapping[str, Result]) -> dict[str, Json]:
    """The data that was made of results, by their names; without that of results which were replaced since."""
    return {name: once.data() for name, once in written.items() if once.is_written and results.get(name) is once.result}
