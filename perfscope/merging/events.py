"""Events of Chrome's trace format, as they are written: times in microseconds with three decimals, from one origin."""

from __future__ import annotations

from decimal import ROUND_HALF_EVEN, Decimal

import msgspec

from perfscope.constants import NS_PER_US

_DECIMALS = 3
NOTHING = msgspec.Raw(b"")


class TraceEvent(msgspec.Struct, omit_defaults=True):
    """Any event; what need not be understood to move it to another clock stays as it was written."""

    ph: str = ""
    cat: str = ""
    name: str = ""
    pid: int | str | None = None
    tid: int | str | None = None
    ts: msgspec.Raw = NOTHING
    dur: msgspec.Raw = NOTHING
    id: msgspec.Raw = NOTHING
    bp: str = ""
    s: str = ""
    args: msgspec.Raw = NOTHING
    id2: msgspec.Raw = NOTHING
    bind_id: msgspec.Raw = NOTHING
    scope: str = ""
    tts: msgspec.Raw = NOTHING
    tdur: msgspec.Raw = NOTHING
    flow_in: bool = False
    flow_out: bool = False
    cname: str = ""


def to_ns(text: bytes) -> int:
    """Nanoseconds of a number of microseconds, as a trace writes it.

    >>> to_ns(b"4454887821519.163"), to_ns(b'"-1.5"'), to_ns(b"2e3")
    (4454887821519163, -1500, 2000000)

    Raises:
        ValueError: It is no number.
    """
    whole, point, fraction = text.strip(b'"').partition(b".")
    if len(fraction) <= _DECIMALS and whole.isdigit() and (fraction.isdigit() or not point):
        return int(whole + fraction.ljust(_DECIMALS, b"0"))
    try:
        number = Decimal(text.strip(b'"').decode()) * NS_PER_US
        return int(number.to_integral_value(ROUND_HALF_EVEN))
    except (ArithmeticError, UnicodeDecodeError):
        raise ValueError(text) from None


def to_us(time_ns: int) -> msgspec.Raw:
    """Nanoseconds as a number of microseconds with three decimals.

    >>> bytes(to_us(1234567)), bytes(to_us(-5))
    (b'1234.567', b'-0.005')
    """
    sign, time_ns = ("-", -time_ns) if time_ns < 0 else ("", time_ns)
    return msgspec.Raw(f"{sign}{time_ns // NS_PER_US}.{time_ns % NS_PER_US:03}".encode())


def name_track(process: int, name: str, order: int, thread: int | None = None) -> list[TraceEvent]:
    """Events that name a process or one of its threads, and say where it stands."""
    kind = "process" if thread is None else "thread"
    return [
        TraceEvent("M", "", f"{kind}_name", process, thread or 0, to_us(0), args=to_json({"name": name})),
        TraceEvent("M", "", f"{kind}_sort_index", process, thread or 0, to_us(0), args=to_json({"sort_index": order})),
    ]


def to_json(value: object) -> msgspec.Raw:
    """A value that stands in an event."""
    return msgspec.Raw(msgspec.json.encode(value))


def to_text(events: list[TraceEvent]) -> bytes:
    """Events as they stand in a list, one a line, without the list's brackets."""
    encode = msgspec.json.encode
    return b",\n".join([encode(event) for event in events])
