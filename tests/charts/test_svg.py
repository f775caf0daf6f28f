"""Claims about charts: what stands where, in files and in pages."""

from __future__ import annotations

from itertools import pairwise
from xml.etree import ElementTree as ET

import pytest

from perfscope.charts.grammar import Area, Categories, Chart, Dots, Heat, HeatCell, Line, Scale, Values
from perfscope.charts.palette import Colour
from perfscope.charts.svg import draw, draw_file, fit_extent, label_levels
from perfscope.page.part import draw_bars

SVG = "{http://www.w3.org/2000/svg}"
HOSTILE = "</title><script>alert(1)</script>\"'&"


def curve(*points: tuple[float, float], scale: Scale = Scale.LINEAR) -> Chart:
    marks = (Line("line", Colour.FIRST, points), Dots("dots", Colour.COPY, points, tuple(map(str, points))))
    return Chart("Title", "Description.", Values("x", scale), Values("y", scale), marks)


def marks_of(svg: str, tag: str) -> list[ET.Element]:
    return [mark for mark in ET.fromstring(svg).iter(f"{SVG}{tag}") if "mark" in mark.get("class", "").split()]


def test_a_point_stands_where_its_values_are() -> None:
    svg = draw_file([curve((0, 0), (5, 50), (10, 100))])
    xs, ys = ([float(mark.get(name, "")) for mark in marks_of(svg, "circle")] for name in ("cx", "cy"))
    assert xs[1] == pytest.approx((xs[0] + xs[2]) / 2, abs=0.2)
    assert ys[1] == pytest.approx((ys[0] + ys[2]) / 2, abs=0.2)
    assert xs[0] < xs[2]
    assert ys[0] > ys[2]


def test_what_a_logarithmic_axis_cannot_show_is_left_out() -> None:
    svg = draw_file([curve((0, 1), (10, -1), (100, 10), scale=Scale.LOGARITHMIC)])
    assert len(marks_of(svg, "circle")) == 1


def test_a_stack_leaves_nothing_out() -> None:
    kinds = (("a", Colour.COPY), ("b", Colour.DATA), ("c", Colour.IDLE))
    figure = draw_bars("t", "ms", ("row", "other"), ((1, 2, 3), (0, None, 4)), kinds)
    assert figure.values.rows == (("row", 1, 2, 3, 6), ("other", 0, None, 4, 4))
    bars = marks_of(draw_file(figure.charts), "rect")
    edges = [(float(bar.get("x", "")), float(bar.get("width", ""))) for bar in bars]
    row = [edges[0], edges[1], edges[2]]
    assert all(x + width == pytest.approx(after, abs=0.02) for (x, width), (after, _) in pairwise(row))
    assert row[2][1] == pytest.approx(3 * row[0][1], rel=0.01)
    assert edges[3][1] == pytest.approx(4 * row[0][1], rel=0.01)


def test_a_heat_map_has_a_cell_for_each_pair_and_hotter_ones_are_darker() -> None:
    cells = tuple(HeatCell(column, row, (column + row) / 3) for column in range(3) for row in range(2))
    chart = Chart("t", "d", Categories(("a", "b", "c")), Categories(("x", "y")), (Heat(cells),))
    drawn = marks_of(draw_file([chart]), "rect")
    assert len(drawn) == 6
    depths = [float(cell.get("fill-opacity", "")) for cell in drawn]
    assert depths[0] == min(depths)
    assert depths[-1] == max(depths)


def test_names_of_a_run_stay_text() -> None:
    area = Area(HOSTILE, Colour.FIRST, ((0, 0, 1), (1, 0, 1)))
    marks = (area, Dots(HOSTILE, Colour.FIRST, ((0, 0),), (HOSTILE,)))
    chart = Chart(HOSTILE, HOSTILE, Values(HOSTILE), Values(HOSTILE), marks)
    for text in (draw_file([chart]), draw([chart, chart], "a").replace("<svg", f'<svg xmlns="{SVG[1:-1]}"')):
        tree = ET.fromstring(text)
        assert not list(tree.iter(f"{SVG}script"))
        assert HOSTILE in [element.text for element in tree.iter()]


@pytest.mark.parametrize("values", [(0.0, 0.0), (5.0,), (), (1e-9, 2e-9), (-3.0, 1e15)])
def test_every_axis_has_round_levels_in_it(values: tuple[float, ...]) -> None:
    extent = fit_extent(Values("x"), values, 0, 400)
    levels = extent.levels()
    assert 1 <= len(levels) <= 14
    assert all(-0.5 <= extent.place(level) <= 400.5 for level in levels)
    assert len(set(label_levels(levels))) == len(levels)
