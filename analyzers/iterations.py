"""The iterations of an inference engine: prefill and decode apart, with what the device did and how much it computed.

Engines mark their iterations by annotations (``perfscope.analyzers.shared.iterations``). An iteration's device events
are those that were launched in it. A CUDA graph that it launches was mostly recorded before the trace began, often in a
trace of its own: there engines write ``capture_32_FULL`` around the recording for 32 tokens. A launched graph is that
of the smallest batch that holds the iteration's tokens, if it has as many kernels and copies as were recorded; its
operations are those of the recording, its attention that of the iteration. Device events without a launch in the trace
were launched before it began, by no iteration in it, and are told apart.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from functools import reduce
from operator import add

import numpy as np
from msgspec import Struct

from perfscope.analyzers.flops.counted_calls import count_each
from perfscope.analyzers.flops.operator_rules import count_flops
from perfscope.analyzers.shared.device_parts import COLUMNS, Parts, split
from perfscope.analyzers.shared.intervals import covered
from perfscope.analyzers.shared.iterations import Iteration, Phase, find_iterations, parse_recording
from perfscope.constants import NS_PER_MS, NS_PER_US, TERA
from perfscope.errors import NotApplicable
from perfscope.report import Column, Json, Section, in_unit
from perfscope.tables.columns import Bool
from perfscope.tables.product_launches import LEFT_OUT, find_recordings, find_replays
from perfscope.tables.products import Product, Products
from perfscope.tables.trace import ABSENT, Trace, span_at

_MOST_LISTED = 64


class RecordedGraphs(Struct, frozen=True, array_like=True):
    """The graphs that an engine recorded for one batch.

    Attributes:
        batch: How many tokens they take.
        kind: What the engine calls them.
        launches: How many launches each of them recorded, in order of size.
        flops: Their operations, without attention that depends on the requests.
        attention: That attention: each distinct call, and how often it is made.
        not_counted: Operators in them that multiply and cannot be counted.
    """

    batch: int
    kind: str
    launches: tuple[int, ...]
    flops: int
    attention: tuple[tuple[Product, int], ...]
    not_counted: tuple[str, ...]

    @property
    def name(self) -> str:
        """The annotation around the recording."""
        return f"capture_{self.batch}_{self.kind}"

    def is_launched_by(self, iteration: MeasuredIteration) -> bool:
        """Whether an iteration's launches of graphs may be those of these graphs."""
        tokens = iteration.iteration.tokens
        launched = sorted(iteration.replays)
        return (
            (tokens is None or tokens <= self.batch)
            and len(launched) == len(self.launches)
            and all(
                abs(events - recorded) <= LEFT_OUT * recorded
                for events, recorded in zip(launched, self.launches, strict=True)
            )
        )

    def count_flops(self, iteration: Iteration) -> int | None:
        """The operations of one launch; absent where the iteration does not say what its attention computes."""
        total = self.flops
        for product, calls in self.attention:
            flops = count_flops(product, iteration.attended_twice)
            if flops is None:
                return None
            total += calls * flops
        return total


class MeasuredIteration(Struct, frozen=True, array_like=True):
    """One iteration on one rank.

    Attributes:
        rank: The rank; absent where nothing states it.
        iteration: What it did.
        start_ns: When it began, on the wall clock.
        host_ns: How long the host was in it.
        parts: What the device did with what was launched in it; absent where nothing was.
        replays: How many device events each graph has that it launched.
        flops: Operations outside of graphs.
        not_counted: Operators outside of graphs that multiply and cannot be counted.
    """

    rank: int | None
    iteration: Iteration
    start_ns: int
    host_ns: int
    parts: Parts | None
    replays: tuple[int, ...]
    flops: int
    not_counted: tuple[str, ...]


class TraceIterations(Struct, frozen=True, array_like=True):
    """What one trace has of an engine.

    Attributes:
        iterations: Its iterations, in order.
        recorded: The graphs that were recorded in it.
        earlier_events: Device events that were launched before it began.
        earlier_ns: The time that they cover.
    """

    iterations: tuple[MeasuredIteration, ...]
    recorded: tuple[RecordedGraphs, ...]
    earlier_events: int
    earlier_ns: int


class _Answer(Struct, frozen=True):
    """An iteration with the graphs that it launched; absent where none is known, or it launched none."""

    measured: MeasuredIteration
    graphs: RecordedGraphs | None

    @property
    def flops(self) -> int | None:
        """All operations of the iteration; absent where those of its graphs are not known."""
        if not self.measured.replays:
            return self.measured.flops
        of_graphs = self.graphs.count_flops(self.measured.iteration) if self.graphs else None
        return None if of_graphs is None else self.measured.flops + of_graphs

    @property
    def not_counted(self) -> tuple[str, ...]:
        """Operators whose operations ``flops`` leaves out."""
        of_graphs = self.graphs.not_counted if self.graphs else ()
        return tuple(sorted({*self.measured.not_counted, *of_graphs}))

    def data(self) -> dict[str, Json]:
        """One entry of ``results.iterations.iterations``."""
        measured, iteration = self.measured, self.measured.iteration
        return {
            "rank": measured.rank,
            "phase": str(iteration.phase),
            "requests": iteration.requests,
            "prefill_tokens": iteration.prefill_tokens,
            "decode_tokens": iteration.decode_tokens,
            "host_us": measured.host_ns / NS_PER_US,
            "device": measured.parts.data() if measured.parts else None,
            "graph_launches": len(measured.replays),
            "graphs": self.graphs.name if self.graphs else None,
            "flops": self.flops,
            "not_counted": list(self.not_counted),
        }


class Iterations(Struct, frozen=True):
    """All iterations, and what ran besides.

    Attributes:
        answers: Each iteration, in order of ranks and time.
        recorded: The graphs of which a trace has the recording.
        earlier_events: Device events that were launched before their trace began.
        earlier_ns: The time that they cover.
    """

    answers: tuple[_Answer, ...]
    recorded: tuple[RecordedGraphs, ...]
    earlier_events: int
    earlier_ns: int

    def data(self) -> Json:
        """``results.iterations``."""
        return {
            "phases": [
                {
                    "phase": str(phase),
                    "iterations": len(members),
                    "prefill_tokens": _sum(answer.measured.iteration.prefill_tokens for answer in members),
                    "decode_tokens": _sum(answer.measured.iteration.decode_tokens for answer in members),
                    "host_us_median": _median_host_ns(members) / NS_PER_US,
                    "device": _data(_parts(members)),
                    "flops": _sum(answer.flops for answer in members),
                }
                for phase, members in self._by_phase()
            ],
            "iterations": [answer.data() for answer in self.answers],
            "recorded_graphs": [
                {"name": graphs.name, "graphs": len(graphs.launches), "launches": sum(graphs.launches)}
                for graphs in self.recorded
            ],
            "launched_before": {"device_events": self.earlier_events, "busy_us": self.earlier_ns / NS_PER_US},
        }

    def sections(self) -> tuple[Section, ...]:
        """A row a phase."""
        columns = (
            Column("Phase"),
            Column("Iterations"),
            Column("Prompt tokens"),
            Column("Generated tokens"),
            Column("Host (ms)", 2),
            *COLUMNS,
            Column("TFLOP", 3),
        )
        rows = []
        for phase, members in self._by_phase():
            parts = _parts(members)
            rows.append(
                (
                    str(phase),
                    len(members),
                    _sum(answer.measured.iteration.prefill_tokens for answer in members),
                    _sum(answer.measured.iteration.decode_tokens for answer in members),
                    _median_host_ns(members) / NS_PER_MS,
                    *(parts.cells() if parts else (None,) * len(COLUMNS)),
                    in_unit(_sum(answer.flops for answer in members), TERA),
                )
            )
        return (Section("Iterations of the inference engine", columns, tuple(rows), tuple(self._notes())),)

    def _by_phase(self) -> Iterator[tuple[Phase, list[_Answer]]]:
        for phase in Phase:
            members = [answer for answer in self.answers if answer.measured.iteration.phase is phase]
            if members:
                yield phase, members

    def _notes(self) -> Iterator[str]:
        if self.answers:
            yield (
                "By the engine's annotations. Host is the median time of an iteration on the host, the rest what was "
                "launched in the iterations, added up."
            )
        names = sorted({answer.graphs.name for answer in self.answers if answer.graphs})
        if names:
            yield f"Graphs were launched that the traces show to be recorded: {_listed(names)}."
        not_counted = sorted({operator for answer in self.answers for operator in answer.not_counted})
        if not_counted:
            yield f"TFLOP leaves out what cannot be counted: {_listed(not_counted)}."
        unknown = [answer for answer in self.answers if answer.measured.replays and answer.graphs is None]
        if unknown:
            yield (
                f"{len(unknown)} iterations launched graphs whose recording no trace contains: their operations are "
                "not known. Give the trace of the recording, too."
            )
        launched = {answer.graphs for answer in self.answers if answer.graphs}
        unlaunched = [graphs.name for graphs in self.recorded if graphs not in launched]
        if unlaunched:
            yield f"Graphs were recorded that no iteration launched: {_listed(unlaunched)}."
        if self.earlier_events:
            yield (
                f"{self.earlier_events} device events, {self.earlier_ns / NS_PER_MS:.2f} ms, were launched before the "
                "trace began and belong to no iteration in it."
            )


def measure(trace: Trace) -> TraceIterations | None:
    """The iterations of one trace; None where it marks none and records no graphs for any."""
    iterations, recorded = tuple(_measure_iterations(trace)), tuple(_measure_recordings(trace))
    if not iterations and not recorded:
        return None
    earlier = (trace.launch == ABSENT) & (trace.device.correlation != ABSENT)
    busy = covered(trace.device, earlier).measure if earlier.any() else 0
    return TraceIterations(iterations, recorded, int(earlier.sum()), busy)


def analyze(partials: Sequence[TraceIterations]) -> Iterations:
    """Put the iterations of all traces together with the graphs that they launched.

    Raises:
        NotApplicable: No trace is of an inference engine.
    """
    if not partials:
        raise NotApplicable("no annotation marks the iterations of an inference engine")
    recorded = tuple(
        sorted({graphs for partial in partials for graphs in partial.recorded}, key=lambda graphs: graphs.batch)
    )
    measured = [iteration for partial in partials for iteration in partial.iterations]
    measured.sort(key=lambda each: (each.rank is None, each.rank or 0, each.start_ns))
    return Iterations(
        tuple(_Answer(iteration, _find_graphs(iteration, recorded)) for iteration in measured),
        recorded,
        sum(partial.earlier_events for partial in partials),
        sum(partial.earlier_ns for partial in partials),
    )


def _find_graphs(iteration: MeasuredIteration, recorded: Sequence[RecordedGraphs]) -> RecordedGraphs | None:
    """The graphs of the smallest batch that an iteration may have launched."""
    if not iteration.replays:
        return None
    return next((graphs for graphs in recorded if graphs.is_launched_by(iteration)), None)


def _measure_iterations(trace: Trace) -> Iterator[MeasuredIteration]:
    spans, iterations = find_iterations(trace)
    if not iterations:
        return
    launch = trace.launch
    launched_ns = trace.calls.start_ns[launch] if len(trace.calls) else np.zeros(len(launch), np.int64)
    of_event = np.where(launch == ABSENT, ABSENT, span_at(spans, launched_ns))
    replays, events = find_replays(trace)
    of_replay = span_at(spans, trace.calls.start_ns[replays])
    # Those of another window are not at the times of this one.
    products = trace.products if trace.products and trace.products.launches is None else None
    counted = count_each(trace, products) if products else None
    of_call = span_at(spans, products.calls.start_ns) if products else np.zeros(0, np.int64)
    for row, iteration in enumerate(iterations):
        members = of_event == row
        mine = of_call == row
        yield MeasuredIteration(
            rank=trace.rank,
            iteration=iteration,
            start_ns=trace.base_ns + int(spans.start_ns[row]),
            host_ns=int(spans.duration_ns[row]),
            parts=split(trace.device.take(members)) if members.any() else None,
            replays=tuple(events[of_replay == row].tolist()),
            flops=int(counted.flops[mine].sum()) if counted else 0,
            not_counted=_names(products, (counted.is_open | counted.of_engine) & mine) if products and counted else (),
        )


def _measure_recordings(trace: Trace) -> Iterator[RecordedGraphs]:
    marks = {index: parse_recording(name) for index, name in enumerate(trace.names) if name.startswith("capture_")}
    if not any(marks.values()) or trace.products is None:
        return
    counted = count_each(trace, trace.products)
    recordings = list(find_recordings(trace, trace.products.calls))
    for name, start_ns, end_ns in zip(
        trace.annotations.name.tolist(), trace.annotations.start_ns, trace.annotations.end_ns, strict=True
    ):
        mark = marks.get(name)
        inside = [recording for recording in recordings if start_ns <= recording.start_ns < end_ns]
        if mark is None or not inside:
            continue
        calls = np.concatenate([recording.calls for recording in inside])
        attention: dict[Product, int] = {}
        for index in trace.products.calls.product[calls[counted.of_engine[calls]]].tolist():
            product = trace.products.products[index]
            attention[product] = attention.get(product, 0) + 1
        launches = tuple(sorted(recording.launches for recording in inside))
        is_inside = np.zeros(len(counted.flops), np.bool_)
        is_inside[calls] = True
        yield RecordedGraphs(
            *mark,
            launches,
            int(counted.flops[calls].sum()),
            tuple(attention.items()),
            _names(trace.products, counted.is_open & is_inside),
        )


def _names(products: Products, calls: Bool) -> tuple[str, ...]:
    """The operators of some calls, each once."""
    return tuple(sorted({products.products[index].operator for index in products.calls.product[calls].tolist()}))


def _sum(values: Iterable[int | None]) -> int | None:
    """The sum; absent where a part of it is."""
    listed = list(values)
    return None if None in listed else sum(value for value in listed if value is not None)


def _median_host_ns(members: Sequence[_Answer]) -> float:
    return float(np.median([answer.measured.host_ns for answer in members]))


def _parts(members: Sequence[_Answer]) -> Parts | None:
    parts = [answer.measured.parts for answer in members if answer.measured.parts]
    return reduce(add, parts) if parts else None


def _data(parts: Parts | None) -> Json:
    return parts.data() if parts else None


def _listed(names: Sequence[str]) -> str:
    hidden = len(names) - _MOST_LISTED
    return ", ".join(names[:_MOST_LISTED]) + (f" and {hidden} more" if hidden > 0 else "")
