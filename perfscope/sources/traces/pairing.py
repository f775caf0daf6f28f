"""One trace of a rank's two windows: times of the light one, what caused them from the one with operators.

Its device events, calls and steps are the light window's. Each device event gets what the profiler knows of it only
where it records operators: the operator, and the metadata of a collective. Operators and annotations are those of the
matching steps, moved to where they were in the light window (``WindowTimeline``).
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence

import numpy as np
from msgspec import Struct
from msgspec.structs import replace

from perfscope.sources.traces.matching import MatchedStep, match_steps
from perfscope.tables.activity import ThreadSpans, join_spans
from perfscope.tables.columns import Bool, Int64
from perfscope.tables.operator_details import OperatorDetails, join_details, no_details
from perfscope.tables.product_launches import find_launches
from perfscope.tables.products import Products
from perfscope.tables.trace import ABSENT, STEP_MARK, DeviceEvents, HostSpans, Int32, Trace, joined

_IS_MARK = re.compile(f"^{STEP_MARK}")


def pair_windows(operators: Trace, light: Trace) -> Trace:
    """The trace of both windows; its path is the light one's.

    Raises NoMatch: a step of the light window has no match; the text says why.
    """
    matched = match_steps(operators, light)
    names = {name: number for number, name in enumerate(light.names)}
    number_of = np.array([names.setdefault(name, len(names)) for name in operators.names], np.int32)
    stretches = list(_find_stretches(operators, light, matched))
    largest_id = max(int(table.external_id.max(initial=0)) for table in (operators.device, operators.operators))
    is_mark = operators.named(_IS_MARK)[operators.annotations.name]
    annotations = operators.annotations.take(~is_mark)
    moved_operators, details = _join_operators(
        [(light.operators, None), *(stretch.move_operators(operators, number_of, largest_id) for stretch in stretches)]
    )
    return replace(
        light,
        rank=operators.rank if light.rank is None else light.rank,
        world_size=operators.world_size if light.world_size is None else light.world_size,
        names=tuple(names),
        device=_attribute(operators, light, stretches, largest_id),
        annotations=joined(light.steps, *(stretch.move(annotations, number_of, largest_id) for stretch in stretches)),
        operators=moved_operators,
        details=details,
        callers=joined(
            light.callers, *(stretch.move(operators.callers, number_of, largest_id) for stretch in stretches)
        ),
        frames=None
        if operators.frames is None
        else joined(*(stretch.move(stretch.enter(operators.frames), number_of, largest_id) for stretch in stretches)),
        in_operators=_move_times(operators.in_operators, stretches),
        groups={**light.groups, **operators.groups},
        collectives=(*operators.collectives, *light.collectives),
        products=_products_of(operators),
        without_twin=sum(step.without_twin for step in matched),
        damage=tuple(dict.fromkeys((*operators.damage, *light.damage))),
    )


class WindowTimeline(Struct, frozen=True, eq=False):
    """Moments of one window, in order, and the same moments of another one, in order, both in nanoseconds."""

    moments_ns: Int64
    same_ns: Int64

    @classmethod
    def through(cls, moments_ns: Int64, same_ns: Int64) -> WindowTimeline:
        """A timeline through pairs of moments, at least one.

        Threads that launch at the same time need not do so in the same order again. A pair that is not later than all
        before it in both windows is left out.
        """
        order = np.lexsort((same_ns, moments_ns))
        moments, same = moments_ns[order], same_ns[order]
        is_later: Bool = np.ones(len(order), np.bool_)
        is_later[1:] = (np.diff(moments) != 0) & (same[1:] > np.maximum.accumulate(same)[:-1])
        return cls(moments[is_later], same[is_later])

    def at(self, moments_ns: Int64) -> Int64:
        """The same moments of the other window; beyond the ends of the timeline time runs as it does there."""
        if len(self.moments_ns) == 1:
            return np.asarray(self.same_ns[0] + moments_ns - self.moments_ns[0])
        after = np.clip(np.searchsorted(self.moments_ns, moments_ns, side="right"), 1, len(self.moments_ns) - 1)
        start, same_start = self.moments_ns[after - 1], self.same_ns[after - 1]
        length, same_length = self.moments_ns[after] - start, self.same_ns[after] - same_start
        offset = moments_ns - start
        is_inside = (offset >= 0) & (offset <= length)
        stretched = np.rint(offset / length * same_length).astype(np.int64)
        beyond = np.where(offset < 0, offset, offset - length + same_length)
        return np.asarray(same_start + np.where(is_inside, stretched, beyond))


class _Stretch(Struct, frozen=True, eq=False):
    """Consecutive steps of the light window that match consecutive steps with operators.

    Attributes:
        start_ns, end_ns: From the beginning of the first one to the end of the last one, where operators are.
        timeline: The host's time there and in the light window.
        repetition: How many stretches before this one matched one of the same steps with operators.
    """

    steps: tuple[MatchedStep, ...]
    start_ns: int
    end_ns: int
    timeline: WindowTimeline
    repetition: int

    def move(self, spans: HostSpans, number_of: Int32, largest_id: int) -> HostSpans:
        """The spans that begin in these steps, where they are in the light window; they end with the last step."""
        inside = spans.take(self._begins_inside(spans))
        start_ns = self.timeline.at(inside.start_ns)
        end_ns = self.timeline.at(np.minimum(inside.end_ns, self.end_ns))
        return replace(
            inside,
            name=number_of[inside.name],
            start_ns=start_ns,
            duration_ns=end_ns - start_ns,
            correlation=np.full(len(inside), ABSENT, np.int64),
            external_id=self.move_ids(inside.external_id, largest_id),
        )

    def enter(self, spans: HostSpans) -> HostSpans:
        """The spans that go on in these steps, from the first of them on."""
        inside = spans.take(spans.end_ns > self.start_ns)
        start_ns = np.maximum(inside.start_ns, self.start_ns)
        return replace(inside, start_ns=start_ns, duration_ns=inside.end_ns - start_ns)

    def _begins_inside(self, spans: HostSpans) -> Bool:
        return np.asarray((spans.start_ns >= self.start_ns) & (spans.start_ns < self.end_ns))

    def move_operators(
        self, trace: Trace, number_of: Int32, largest_id: int
    ) -> tuple[HostSpans, OperatorDetails | None]:
        """The operators that begin in these steps, where they are in the light window, and their details."""
        moved = self.move(trace.operators, number_of, largest_id)
        if trace.details is None:
            return moved, None
        details = trace.details.take(self._begins_inside(trace.operators))
        # Nodes of autograd find their forward operators by these numbers, and those of another step are others.
        largest = int(trace.details.sequence.max(initial=0))
        return moved, replace(details, sequence=self.move_ids(details.sequence, largest))

    def move_times(self, spans: ThreadSpans) -> ThreadSpans:
        """See ``move``."""
        inside = (spans.start_ns >= self.start_ns) & (spans.start_ns < self.end_ns)
        start_ns, end_ns = spans.start_ns[inside], np.minimum(spans.end_ns[inside], self.end_ns)
        return ThreadSpans(self.timeline.at(start_ns), self.timeline.at(end_ns), spans.thread[inside])

    def move_ids(self, external_id: Int64, largest_id: int) -> Int64:
        """The ids of operators; those of a step that is matched again are others."""
        return np.where(external_id == ABSENT, ABSENT, external_id + self.repetition * (largest_id + 1))


def _find_stretches(operators: Trace, light: Trace, matched: Sequence[MatchedStep]) -> Iterator[_Stretch]:
    begin = 0
    uses = np.zeros(len(operators.steps), np.int64)
    for end in range(1, len(matched) + 1):
        if end < len(matched) and matched[end].operators == matched[end - 1].operators + 1:
            continue
        steps = tuple(matched[begin:end])
        rows = [step.operators for step in steps]
        yield _Stretch(
            steps,
            int(operators.steps.start_ns[rows[0]]),
            int(operators.steps.end_ns[rows[-1]]),
            _find_timeline(operators, light, steps),
            int(uses[rows].max()),
        )
        uses[rows] = uses[rows].max() + 1
        begin = end


def _find_timeline(operators: Trace, light: Trace, steps: Sequence[MatchedStep]) -> WindowTimeline:
    """The host's timeline through the edges of steps, and the beginnings and ends of all launches."""
    pairs = [(operators.steps.end_ns[[steps[-1].operators]], light.steps.end_ns[[steps[-1].light]])]
    for step in steps:
        calls, light_calls = operators.launch[step.operator_rows], light.launch[step.light_rows]
        pairs += [
            (operators.steps.start_ns[[step.operators]], light.steps.start_ns[[step.light]]),
            (operators.calls.start_ns[calls], light.calls.start_ns[light_calls]),
            (operators.calls.end_ns[calls], light.calls.end_ns[light_calls]),
        ]
    moments, same = (np.concatenate(columns) for columns in zip(*pairs, strict=True))
    return WindowTimeline.through(moments, same)


def _attribute(operators: Trace, light: Trace, stretches: Sequence[_Stretch], largest_id: int) -> DeviceEvents:
    known, device = operators.device, light.device
    columns = {name: getattr(device, name).copy() for name in ("work", "external_id", "bytes", "collective")}
    columns["collective"] += np.where(device.collective == ABSENT, 0, len(operators.collectives))
    for stretch in stretches:
        for step in stretch.steps:
            to, rows = step.light_rows, step.operator_rows
            columns["work"][to] = known.work[rows]
            columns["external_id"][to] = stretch.move_ids(known.external_id[rows], largest_id)
            columns["bytes"][to] = np.where(device.bytes[to] == ABSENT, known.bytes[rows], device.bytes[to])
            columns["collective"][to] = np.where(
                known.collective[rows] == ABSENT, columns["collective"][to], known.collective[rows]
            )
    return replace(device, **columns)


def _move_times(spans: ThreadSpans | None, stretches: Sequence[_Stretch]) -> ThreadSpans | None:
    return None if spans is None else join_spans([stretch.move_times(spans) for stretch in stretches])


def _products_of(operators: Trace) -> Products | None:
    products = operators.products
    if products is None:
        return None
    return replace(products, steps=len(operators.steps), launches=find_launches(operators, products))


def _join_operators(
    parts: Sequence[tuple[HostSpans, OperatorDetails | None]],
) -> tuple[HostSpans, OperatorDetails | None]:
    """The rows of several tables of operators with their details, in the order of their start."""
    columns = [np.concatenate([getattr(spans, name) for spans, _ in parts]) for name in HostSpans.__struct_fields__]
    spans = HostSpans(*columns)
    order = np.argsort(spans.start_ns, kind="stable")
    if all(details is None for _, details in parts):
        return spans.take(order), None
    details = join_details([details or no_details(len(of)) for of, details in parts])
    return spans.take(order), details.take(order)
