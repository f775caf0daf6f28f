"""The timeline of all ranks on one clock: its data for the script that draws it, and what stands around it."""

from __future__ import annotations

from collections.abc import Iterator
from string import Template

import msgspec
import numpy as np

from perfscope.analyzers.timeline import STATES, DeviceTimeline, JobTimeline, JobTracks
from perfscope.charts.palette import Colour
from perfscope.charts.svg import LONGEST_TEXT
from perfscope.constants import NS_PER_US
from perfscope.engine.run import Analysis
from perfscope.page.html import read_asset
from perfscope.page.part import Drawn, rank_name, result_of
from perfscope.report import Json, escape_control_characters
from perfscope.tables.trace import ABSENT
from perfscope.units import format_bytes

#: The colour of each state, in their order.
_COLOURS = (
    Colour.COMPUTE, Colour.BESIDE, Colour.COMMUNICATION, Colour.COPY, Colour.DATA, Colour.SYNCHRONISATION, Colour.CALL,
    Colour.OPERATOR, Colour.PAUSE, Colour.UNKNOWN, Colour.LAUNCH, Colour.LAUNCH, Colour.PAUSE, Colour.DEPENDENCY,
    Colour.CALL, Colour.UNKNOWN, Colour.DATA, Colour.PAUSE,
)  # fmt: skip
#: Ranks of operations that a page draws: more make it too large for a browser.
_MOST_MEMBERS = 60_000


def draw_timeline(analysis: Analysis) -> Drawn:
    """What each device or host did at every moment, for the script that draws it."""
    timeline = result_of(analysis, "timeline", JobTimeline)
    assert timeline is not None
    return Drawn(" ".join(_describe(timeline)), html=_write(timeline))


def _describe(timeline: JobTimeline) -> Iterator[str]:
    what = "device" if timeline.devices[0].tracks.device is not None else "host"
    yield f"What each {what} did at every moment, on one clock."
    if timeline.why_shown:
        yield (
            f"The strip at the top is of all {len(timeline.devices):,} {what}s. Below it are {len(timeline.shown)} of "
            "them: those with most and least of each state, and even quantiles by their share of compute."
        )
    joined_ns = max((timeline.devices[index].joined_ns for index in timeline.shown), default=0)
    if joined_ns:
        yield (
            f"Stretches shorter than {joined_ns / NS_PER_US:,.0f} us are joined into what takes most of their time; "
            "the table counts each exactly, and `perfscope export --as trace` writes every event for Perfetto."
        )


def _write(timeline: JobTimeline) -> str:
    data = msgspec.json.encode(_to_data(timeline)).decode()
    for letter in "<>&\u2028\u2029":
        data = data.replace(letter, f"\\u{ord(letter):04x}")
    used = [index for index in range(len(STATES)) if any(device.time_ns[index] for device in timeline.devices)]
    legend = "".join(f'<li><i class="swatch fill-{_COLOURS[index]}"></i>{STATES[index]}</li>' for index in used)
    if timeline.job.bubbles:
        legend += f'<li><i class="swatch fill-{Colour.BUBBLE}"></i>pipeline bubble</li>'
    return Template(read_asset("timeline.html").replace("\n", "")).substitute(legend=legend, data=data)


def _to_data(timeline: JobTimeline) -> dict[str, Json]:
    """What the script reads; times are nanoseconds from the first moment."""
    names: dict[str, int] = {}
    shown = [timeline.devices[index] for index in timeline.shown]
    rows = list(dict.fromkeys((device.tracks.rank, device.tracks.device) for device in shown))
    position = {row: index for index, row in enumerate(rows)}
    pieces: list[list[Json]] = [[] for _ in rows]
    steps: list[list[Json]] = [[] for _ in rows]
    reasons: dict[int, str] = {}
    for device, reason in zip(shown, timeline.why_shown or [""] * len(shown), strict=True):
        tracks = device.tracks
        offset_ns = timeline.job.clock_of(tracks.rank).offset_ns + timeline.start_ns
        row = position[tracks.rank, tracks.device]
        if reason:
            reasons.setdefault(row, reason)
        pieces[row].append(_pack_device(device, offset_ns, names))
        steps[row] += [[step.number, step.start_ns - offset_ns, step.last_ns - offset_ns] for step in tracks.steps]
    return {
        "end": timeline.end_ns - timeline.start_ns + 1,
        "states": [[name, str(colour)] for name, colour in zip(STATES, _COLOURS, strict=True)],
        "rows": [
            {"name": rank_name(rank), "steps": steps[index], "pieces": pieces[index]}
            for index, (rank, _) in enumerate(rows)
        ],
        "why": [reasons.get(index, "") for index in range(len(rows))] if reasons else [],
        "names": list(names),
        "shares": _round_shares(timeline),
        "bins": len(timeline.shares),
        **_pack_operations(timeline.job, {rank: index for index, (rank, _) in enumerate(rows)}, timeline.start_ns),
    }


def _pack_device(device: DeviceTimeline, offset_ns: int, names: dict[str, int]) -> Json:
    """One window: its first moment, its states, and its longest events."""
    states, longest = device.tracks.states, device.longest
    assert states is not None
    edges = np.maximum(np.append(states.start_ns, states.end_ns[-1:]) - offset_ns, 0)
    texts = (escape_control_characters(name[:LONGEST_TEXT]) for name in longest.names)
    index = np.array([names.setdefault(text, len(names)) for text in texts], np.int64)
    gaps = np.diff(np.maximum(longest.start_ns - offset_ns, 0), prepend=0)
    columns = np.column_stack((np.maximum(gaps, 0), longest.end_ns - longest.start_ns, index[longest.name]))
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


def _pack_operations(job: JobTracks, rows: dict[int | None, int], start_ns: int) -> dict[str, Json]:
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
        # Row, begin and end of each rank that is shown, the first one to arrive first.
        entries = sorted(zip(operation.ranks, operation.start_ns, operation.end_ns, strict=True), key=lambda e: e[1])
        flat = [
            number
            for rank, begin_ns, end_ns in entries
            if rank in rows
            for number in (rows[rank], begin_ns - start_ns, end_ns - start_ns)
        ]
        packed.append([kind, *flat])
    bubbles = [
        [rows[bubble.rank], bubble.start_ns - start_ns, bubble.end_ns - start_ns]
        for bubble in job.bubbles
        if bubble.rank in rows
    ]
    return {"kinds": list(kinds), "operations": packed, "bubbles": bubbles}
