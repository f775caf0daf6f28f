"""What the analyzers must answer, computed one nanosecond at a time with sets: slow, and plain enough to trust.

It shares no code with perfscope, and reads the events as they were made rather than the file.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

COMPUTE, COMMUNICATION, COPY = "compute", "communication", "copy"


@dataclass(frozen=True)
class Thing:
    """Something that ran on the device.

    Attributes:
        work: COMPUTE, COMMUNICATION or COPY.
        start, end: In nanoseconds, end excluded.
        launched: When the host launched it; absent where that is not known.
        returned: When the launching call returned.
        group: The process group of a communication.
    """

    work: str
    start: int
    end: int
    launched: int | None = None
    returned: int | None = None
    group: str = ""


def moments(things: Iterable[Thing], *works: str) -> set[int]:
    """Every nanosecond in which one of them was at work."""
    return {ns for thing in things if thing.work in works for ns in range(thing.start, thing.end)}


def breakdown(things: list[Thing]) -> dict[str, int]:
    """The parts of the window, in nanoseconds."""
    compute = moments(things, COMPUTE)
    communication = moments(things, COMMUNICATION)
    copy = moments(things, COPY)
    window = set(range(min(thing.start for thing in things), max(thing.end for thing in things)))
    return {
        "window": len(window),
        "compute": len(compute),
        "communication": len(communication),
        "copy": len(copy),
        "exposed_communication": len(communication - compute),
        "exposed_copy": len(copy - compute - communication),
        "idle": len(window - compute - communication - copy),
    }


def in_step(things: list[Thing], start: int, end: int) -> list[Thing]:
    """What was launched in a step."""
    return [thing for thing in things if thing.launched is not None and start <= thing.launched < end]


def outside_steps(things: list[Thing], steps: list[tuple[int, int]]) -> dict[str, int] | None:
    """What is in the window besides the steps; None where nothing was launched in one."""
    members = [of_step for bounds in steps if (of_step := in_step(things, *bounds))]
    if not members:
        return None
    works = COMPUTE, COMMUNICATION, COPY
    of_steps = {
        ns
        for of_step in members
        for ns in range(min(thing.start for thing in of_step), max(thing.end for thing in of_step))
    }
    others = [thing for thing in things if not any(thing in of_step for of_step in members)]
    return {
        "before": min(of_steps) - min(thing.start for thing in things),
        "after": max(thing.end for thing in things) - max(of_steps) - 1,
        "between": max(of_steps) - min(of_steps) + 1 - len(of_steps),
        "busy": len(moments(others, *works)),
        "device_events": len(others),
    }


def groups(things: list[Thing], urgency: list[str]) -> dict[str, tuple[int, int, int]]:
    """For each group its communication, how much of it is hidden, and the exposed time that is given to it."""
    compute = moments(things, COMPUTE)
    given: set[int] = set(compute)
    found = {}
    for group in urgency:
        mine = moments([thing for thing in things if thing.group == group], COMMUNICATION)
        if mine:
            found[group] = (len(mine), len(mine & compute), len(mine - given))
        given |= mine
    return found


def idle_causes(things: list[Thing], loading: set[int], waiting: set[int], launch_gap: int) -> dict[str, int]:
    """Idle nanoseconds by cause, where the host has one thread and the trace shows no operators."""
    calling = {ns for thing in things for ns in range(thing.launched or 0, thing.returned or 0)}
    host = {"data_loading": loading, "synchronisation": waiting, "cuda_call": calling}
    busy = moments(things, COMPUTE, COMMUNICATION, COPY)
    causes: dict[str, int] = {}
    for gap in _gaps(busy, min(thing.start for thing in things), max(thing.end for thing in things)):
        together = [thing for thing in things if thing.start == gap[-1] + 1]
        known = [thing for thing in together if thing.launched is not None and thing.returned is not None]
        after = min(known, key=lambda thing: (thing.launched or 0, thing.returned or 0)) if known else together[0]
        for cause, count in _cause(gap, after, host, launch_gap).items():
            causes[cause] = causes.get(cause, 0) + count
    return {cause: count for cause, count in causes.items() if count}


def _gaps(busy: set[int], start: int, end: int) -> list[list[int]]:
    gaps: list[list[int]] = []
    for ns in range(start, end):
        if ns in busy:
            continue
        if gaps and gaps[-1][-1] == ns - 1:
            gaps[-1].append(ns)
        else:
            gaps.append([ns])
    return gaps


def _cause(gap: list[int], after: Thing, host: dict[str, set[int]], launch_gap: int) -> dict[str, int]:
    if after.launched is None or after.returned is None:
        return {"unknown": len(gap)}
    if after.launched < gap[0]:
        if after.returned > gap[0]:
            return {"launch_latency": len(gap)}
        return {"launch_gap" if len(gap) < launch_gap else "dependency": len(gap)}
    causes: dict[str, int] = {}
    for ns in gap:
        cause = next((state for state, moments in host.items() if ns in moments), "host_launch")
        cause = cause if ns < after.launched else "launch_latency"
        causes[cause] = causes.get(cause, 0) + 1
    return causes
