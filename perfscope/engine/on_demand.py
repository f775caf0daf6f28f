"""Partials that only a derived result may ask for, such as the graphs that findings replay: most runs need none.

Where a trace is read anyway they are measured with it; where its partials stand in for it, it is read when they are
asked for. What goes wrong with them is said only where they are asked for, so that an answer is the same either way.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

from perfscope.engine.registry import Partial
from perfscope.engine.tasks import MeasuredTrace
from perfscope.engine.windows import TraceFiles


class OnDemand:
    """The partials of one analyzer.

    Args:
        name: The analyzer.
        answers: What was measured of all traces, in their order.
        postponed: Those of them that were not read for it.
        measure: Reads them for it, and answers in any order.
    """

    def __init__(
        self,
        name: str,
        answers: Sequence[MeasuredTrace],
        postponed: Sequence[TraceFiles] = (),
        measure: Callable[[Sequence[TraceFiles]], Iterable[MeasuredTrace]] = lambda _: (),
    ) -> None:
        self._name = name
        self._answers = answers
        self._postponed = postponed
        self._measure = measure
        self._partials: list[Partial] | None = None
        self.damage: list[str] = []

    def __call__(self) -> Sequence[Partial]:
        """The partials, in the order of the traces; none where one cannot be measured, which is damage then."""
        if self._partials is None:
            self._partials = self._take()
        return self._partials

    def _take(self) -> list[Partial]:
        later = {answer.path: answer for answer in self._measure(self._postponed)} if self._postponed else {}
        answers = [later.get(answer.path, answer) for answer in self._answers]
        unread = [line for answer in later.values() if answer.summary is None for line in answer.damage]
        self.damage = [*unread, *(answer.failed[self._name] for answer in answers if self._name in answer.failed)]
        if self.damage:  # a replay of some ranks alone would say something else
            return []
        return [answer.partials[self._name] for answer in answers if self._name in answer.partials]
