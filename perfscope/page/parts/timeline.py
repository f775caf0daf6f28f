"""The timeline of all ranks on one clock: its data for the script that draws it, and what stands around it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import msgspec
import numpy as np

from perfscope.analyzers.timeline import DeviceTimeline, JobTimeline
from perfscope.analyzers.timeline.tracks import STATES, JobTracks
from perfscope.charts.palette import Colour
from perfscope.constants import NS_PER_US
from perfscope.engine.run import Analysis
from perfscope.page.part import Drawn, rank_name, result_of
from perfscope.report import Json, escape_control_characters
from perfscope.tables.trace import ABSENT
from perfscope.units import format_bytes

#: The colour of each state, in their order.
_COLOURS = (
    Colour.COMPUTE, Colour.BESIDE, Colour.COMMUNICATION, Colour.COPY, Colour.DATA, Colour.SYNCHRONISATION, Colour.CALL,
    Colour.OPERATOR, Colour.PAUSE, Colour.UNKNOWN, Colour.LAUNCH, Colour.LAUNCH, Colour.PAUSE, Colour.DEPENDENCY,
    Colour.CALL, Colour.UNKNOWN,
)  # fmt: skip
_MOST_MEMBERS = 60_000
_LONGEST_NAME = 160
_FINEST_UNITS = 2**31


def draw_timeline(analysis: Analysis) -> Drawn:
    """All ranks on one clock: what each device did at every moment."""
    timeline = result_of(analysis, "timeline", JobTimeline)
    assert timeline is not None
    return Drawn(" ".join(_describe(timeline)), html=_write(timeline))


def _describe(timeline: JobTimeline) -> Iterator[str]:
    yield "What each device did at every moment, on one clock."
    if timeline.why_shown:
        yield (
            f"The strip at the top is of all {len(timeline.devices):,} devices. Below it are {len(timeline.shown)} of "
            "them: those with most and least of each state, and even quantiles by their share of compute."
        )
    joined_ns = max((timeline.devices[index].joined_ns for index in timeline.shown), default=0)
    if joined_ns:
        yield (
            f"Stretches shorter than {joined_ns / NS_PER_US:,.0f} us are joined into what takes most of their time; "
            "the table counts each exactly, and `perfscope export --as trace` writes every event for Perfetto."
        )


def _write(timeline: JobTimeline) -> str:
    data = msgspec.json.encode(to_data(timeline)).decode()
    for letter, code in (
        ("<", "\\u003c"),
        (">", "\\u003e"),
        ("&", "\\u0026"),
        ("\u2028", "\\u2028"),
        ("\u2029", "\\u2029"),
    ):
        data = data.replace(letter, code)
    used = [index for index in range(len(STATES)) if any(device.time_ns[index] for device in timeline.devices)]
    legend = "".join(f'<li><i class="swatch fill-{_COLOURS[index]}"></i>{STATES[index]}</li>' for index in used)
    if timeline.job.bubbles:
        legend += f'<li><i class="swatch fill-{Colour.BUBBLE}"></i>pipeline bubble</li>'
    return (
        '<div class="timeline" id="timeline-view"><div class="controls">'
        '<button type="button" data-act="in" aria-label="Zoom in">+</button>'
        '<button type="button" data-act="out" aria-label="Zoom out">&minus;</button>'
        '<button type="button" data-act="left" aria-label="Earlier">←</button>'
        '<button type="button" data-act="right" aria-label="Later">→</button>'
        '<button type="button" data-act="all">All</button>'
        '<label>Search <input type="search" id="timeline-search" autocomplete="off" spellcheck="false" '
        'placeholder="kernel, collective, step 5, rank 3"></label>'
        '<button type="button" data-act="previous" aria-label="Previous match">&lsaquo;</button>'
        '<button type="button" data-act="next" aria-label="Next match">&rsaquo;</button>'
        '<output id="timeline-matches" for="timeline-search"></output></div>'
        '<canvas id="timeline-canvas" tabindex="0" role="application" aria-roledescription="timeline" '
        'aria-label="Timeline of all ranks" aria-describedby="timeline-keys timeline-said"></canvas>'
        '<p id="timeline-said" class="said" role="status"></p>'
        f'<ul class="legend">{legend}</ul>'
        '<p id="timeline-keys" class="faint">Drag to move, Ctrl + wheel or double click to zoom. With the keyboard: '
        "<kbd>+</kbd> <kbd>&minus;</kbd> zoom, <kbd>←</kbd> <kbd>→</kbd> move, <kbd>↑</kbd> <kbd>↓</kbd> choose a "
        "rank, <kbd>.</kbd> <kbd>,</kbd> next and previous stretch, <kbd>0</kbd> all, <kbd>/</kbd> search.</p>"
        f'<script type="application/json" id="timeline-data">{data}</script></div>'
    )


def to_data(timeline: JobTimeline) -> dict[str, Json]:
    """What the script reads; times are counted in ``unit_ns`` from the first moment."""
    unit_ns = 1
    while (timeline.end_ns - timeline.start_ns) // unit_ns > _FINEST_UNITS:
        unit_ns *= 10
    names: dict[str, int] = {}
    shown = [timeline.devices[index] for index in timeline.shown]
    rows = list(dict.fromkeys((device.tracks.rank, device.tracks.device) for device in shown))
    position = {row: index for index, row in enumerate(rows)}
    pieces: list[list[Json]] = [[] for _ in rows]
    steps: list[list[Json]] = [[] for _ in rows]
    for device in shown:
        tracks = device.tracks
        offset_ns = timeline.job.clock_of(tracks.rank).offset_ns + timeline.start_ns
        row = position[tracks.rank, tracks.device]
        pieces[row].append(_pack_device(device, offset_ns, unit_ns, names))
        steps[row] += [
            [step.number, (step.start_ns - offset_ns) // unit_ns, (step.last_ns - offset_ns) // unit_ns]
            for step in tracks.steps
        ]
    reasons = dict(zip(timeline.shown, timeline.why_shown, strict=False))
    return {
        "unit_ns": unit_ns,
        "end": (timeline.end_ns - timeline.start_ns) // unit_ns + 1,
        "states": [[name, str(colour)] for name, colour in zip(STATES, _COLOURS, strict=True)],
        "rows": [
            {"name": rank_name(rank), "steps": steps[index], "pieces": pieces[index]}
            for index, (rank, _) in enumerate(rows)
        ],
        "why": [reasons.get(index, "") for index in timeline.shown] if reasons else [],
        "names": list(names),
        "shares": _round_shares(timeline),
        "bins": len(timeline.shares),
        **_pack_operations(
            timeline.job, {rank: index for index, (rank, _) in enumerate(rows)}, timeline.start_ns, unit_ns
        ),
    }


def _pack_device(device: DeviceTimeline, offset_ns: int, unit_ns: int, names: dict[str, int]) -> Json:
    """One window: its first moment, its states, and its longest events."""
    states, longest = device.tracks.states, device.longest
    assert states is not None
    edges = np.append(states.start_ns, states.end_ns[-1:]) - offset_ns
    edges = np.maximum(edges // unit_ns, 0)
    index = np.array(
        [names.setdefault(escape_control_characters(name[:_LONGEST_NAME]), len(names)) for name in longest.names],
        np.int64,
    )
    starts = np.maximum((longest.start_ns - offset_ns) // unit_ns, 0)
    gaps = np.diff(starts, prepend=0)
    columns = np.column_stack(
        (np.maximum(gaps, 0), (longest.end_ns - longest.start_ns) // unit_ns, index[longest.name])
    )
    return {
        "at": int(edges[0]),
        "lengths": np.diff(edges).tolist(),
        "states": states.state.tolist(),
        "events": columns.reshape(-1).tolist(),
        "of": longest.total,
    }


def _round_shares(timeline: JobTimeline) -> Json:
    """For each state that occurs its share of the devices' time in each stretch, in thousandths."""
    whole_ns = max((timeline.end_ns - timeline.start_ns) / len(timeline.shares), 1) * len(timeline.devices)
    thousandths = np.round(timeline.shares * 1000 / whole_ns).astype(np.int64)
    return [[state, thousandths[:, state].tolist()] for state in range(len(STATES)) if thousandths[:, state].any()]


def _pack_operations(job: JobTracks, rows: dict[int | None, int], start_ns: int, unit_ns: int) -> dict[str, Json]:
    """The operations of several ranks, the longest first where there are too many; and the bubbles."""
    ordered = sorted(job.operations, key=lambda operation: min(operation.start_ns) - max(operation.end_ns))
    kinds: dict[str, int] = {}
    packed: list[Json] = []
    members = 0
    for operation in ordered:
        members += len(operation.ranks)
        if members > _MOST_MEMBERS:
            break
        size = "" if operation.kind.bytes == ABSENT else f" of {format_bytes(operation.kind.bytes)}"
        kind = kinds.setdefault(f"{operation.kind.operation or 'operation'}{size}", len(kinds))
        entries = sorted(zip(operation.ranks, operation.start_ns, operation.end_ns, strict=True), key=lambda e: e[1])
        packed.append([kind, *(_flat(entries, rows, start_ns, unit_ns))])
    bubbles = [
        [rows[bubble.rank], (bubble.start_ns - start_ns) // unit_ns, (bubble.end_ns - start_ns) // unit_ns]
        for bubble in job.bubbles
        if bubble.rank in rows
    ]
    return {"kinds": list(kinds), "operations": packed, "operations_in_all": len(job.operations), "bubbles": bubbles}


def _flat(
    entries: Sequence[tuple[int, int, int]], rows: dict[int | None, int], start_ns: int, unit_ns: int
) -> Iterator[int]:
    """Row, begin and end of each rank that is shown, the first one to arrive first."""
    for rank, begin_ns, end_ns in entries:
        if rank in rows:
            yield from (rows[rank], (begin_ns - start_ns) // unit_ns, (end_ns - start_ns) // unit_ns)
