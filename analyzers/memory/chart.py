"""The chart of a device's memory over a window: what it held, layer upon layer."""

from __future__ import annotations

from perfscope.analyzers.memory.categories import CATEGORY_NAMES, Category
from perfscope.analyzers.memory.peak import DevicePeak
from perfscope.charts.grammar import Area, Chart, Line, Mark, Values
from perfscope.charts.palette import Colour
from perfscope.constants import GB, US_PER_S

_MS_PER_US = 1000 / US_PER_S
_COLOURS = {
    Category.WEIGHTS: Colour.COMPUTE,
    Category.GRADIENTS: Colour.BACKWARD,
    Category.OPTIMIZER: Colour.BESIDE,
    Category.ACTIVATIONS: Colour.SYNCHRONISATION,
    Category.COMMUNICATION: Colour.COMMUNICATION,
    Category.WORKSPACE: Colour.COPY,
    Category.BEFORE: Colour.IDLE,
    Category.OTHER: Colour.UNKNOWN,
}
#: Lowest in the chart is what never changes.
_ORDER = (
    Category.WEIGHTS, Category.OPTIMIZER, Category.BEFORE, Category.OTHER, Category.COMMUNICATION,
    Category.GRADIENTS, Category.ACTIVATIONS, Category.WORKSPACE,
)  # fmt: skip


def chart_memory(peak: DevicePeak) -> Chart:
    """Bytes by category over the window, and what the allocator held."""
    timeline = peak.timeline
    times = [time * _MS_PER_US if timeline.is_timed else float(time) for time in timeline.times_us]
    lower = [0] * len(times)
    marks: list[Mark] = []
    for category in _ORDER:
        sizes = timeline.categories[category]
        if any(sizes):
            upper = [low + size for low, size in zip(lower, sizes, strict=True)]
            points = tuple((x, low / GB, high / GB) for x, low, high in zip(times, lower, upper, strict=True))
            marks.append(Area(CATEGORY_NAMES[category], _COLOURS[category], points))
            lower = upper
    reserved = tuple((x, size / GB) for x, size in zip(times, timeline.reserved, strict=True))
    marks.append(Line("reserved by the allocator", Colour.QUIET, reserved, is_dashed=True))
    who = "the device" if peak.rank is None else f"rank {peak.rank}"
    return Chart(
        f"Memory of {who}: at most {peak.peak_bytes / GB:.2f} GB",
        f"What tensors of {who} held over the window, by what they are for.",
        Values("time (ms)" if timeline.is_timed else "event"),
        Values("GB", low=0),
        tuple(marks),
    )
