"""The colours of charts, by what they mean, in light and in dark surroundings.

Neighbours differ in lightness too, so that they can be told apart by the colour-blind and on paper.
"""

from __future__ import annotations

from enum import StrEnum


class Colour(StrEnum):
    """A colour by its meaning; the value is its name in style sheets."""

    COMPUTE = "compute"
    BESIDE = "beside"
    COMMUNICATION = "communication"
    COPY = "copy"
    IDLE = "idle"
    DATA = "data"
    SYNCHRONISATION = "synchronisation"
    CALL = "call"
    OPERATOR = "operator"
    PAUSE = "pause"
    LAUNCH = "launch"
    DEPENDENCY = "dependency"
    UNKNOWN = "unknown"
    BUBBLE = "bubble"
    FORWARD = "forward"
    BACKWARD = "backward"
    WEIGHT = "weight"
    WORSE = "worse"
    HEAT = "heat"
    FIRST = "first"
    QUIET = "quiet"


#: Of several series, in the order in which they stand.
SERIES = (Colour.FIRST, Colour.BACKWARD, Colour.DATA, Colour.COPY, Colour.COMMUNICATION, Colour.CALL)

_COLOURS: dict[str, tuple[str, str]] = {
    "ground": ("#ffffff", "#14181e"),
    "ink": ("#1b2430", "#e8ecf1"),
    "faint": ("#566270", "#a3aebb"),
    "grid": ("#e4e8ee", "#2b333d"),
    Colour.COMPUTE: ("#2f6db3", "#6ba6e8"),
    Colour.BESIDE: ("#12817d", "#3fc1bb"),
    Colour.COMMUNICATION: ("#d9741a", "#f2a04e"),
    Colour.COPY: ("#8a56b0", "#bf95e0"),
    Colour.IDLE: ("#d3d9e1", "#3a444f"),
    Colour.DATA: ("#b8324f", "#f0718c"),
    Colour.SYNCHRONISATION: ("#dcae0a", "#f0cd4c"),
    Colour.CALL: ("#8c7a52", "#b8a77e"),
    Colour.OPERATOR: ("#86b9d6", "#3f7594"),
    Colour.PAUSE: ("#e3a08c", "#a3604e"),
    Colour.LAUNCH: ("#c77da6", "#c98bb0"),
    Colour.DEPENDENCY: ("#93a779", "#8fae6c"),
    Colour.UNKNOWN: ("#e6eaef", "#2a323b"),
    Colour.BUBBLE: ("#f3deb0", "#6a5a2e"),
    Colour.FORWARD: ("#2f6db3", "#6ba6e8"),
    Colour.BACKWARD: ("#2a8a63", "#52c795"),
    Colour.WEIGHT: ("#9fd4b8", "#2f6e51"),
    Colour.WORSE: ("#c4412a", "#f2846c"),
    Colour.HEAT: ("#b3341a", "#ff8f6b"),
    Colour.FIRST: ("#2f6db3", "#6ba6e8"),
    Colour.QUIET: ("#7b8694", "#8e9aa8"),
}

#: How marks take their colours; the same in pages and in files of their own.
_RULES = """
.chart text{fill:var(--ink);font:12px system-ui,-apple-system,"Segoe UI",Roboto,"Helvetica Neue",Arial,sans-serif}
.chart .faint{fill:var(--faint)}
.chart .heading{font-weight:600;font-size:13px}
.chart .on-mark{fill:var(--ground);font-size:11px}
.chart .ground{fill:var(--ground)}
.chart .grid{stroke:var(--grid);fill:none}
.chart .axis{stroke:var(--faint);fill:none}
.chart .line{fill:none;stroke-width:1.75;stroke-linejoin:round}
.chart .dashed{stroke-dasharray:5 4}
.chart .area{opacity:.22}
.chart .edge{stroke:var(--ground);stroke-width:.6}
"""


def style_variables() -> str:
    """The colours as variables of a style sheet, for light and for dark surroundings."""
    light, dark = (
        "".join(f"--{name}:{pair[mode]};" for name, pair in _COLOURS.items()) for mode in (0, 1)
    )  # fmt: skip
    return f":root{{{light}}}\n@media (prefers-color-scheme:dark){{@media screen{{:root{{{dark}}}}}}}\n"


def style_rules() -> str:
    """The rules for the marks of charts."""
    fills = "".join(
        f".fill-{name}{{fill:var(--{name});background-color:var(--{name})}}.line-{name}{{stroke:var(--{name})}}\n"
        for name in Colour
    )
    return _RULES.lstrip() + fills
