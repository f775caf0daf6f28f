"""A heat map of the slowdown by worker, as SVG: a row a stage, a column a pipeline."""

from __future__ import annotations

from collections.abc import Iterator
from html import escape

from perfscope.analyzers.job_replay.slowdown import Slowdowns

_CELL_WIDTH, _CELL_HEIGHT = 54, 30
_LEFT, _TOP = 70, 56
#: The slowdown from which a cell has the darkest colour.
_DARKEST = 1.5
_LIGHT, _DARK = (255, 245, 235), (166, 30, 20)


def draw_heat_map(slowdowns: Slowdowns) -> str:
    """Draw S of each worker; each cell names its rank when pointed at."""
    job = slowdowns.job
    width, height = _LEFT + max(job.pipelines, 5) * _CELL_WIDTH + 20, _TOP + job.stages * _CELL_HEIGHT + 36
    body = "\n".join(_draw(slowdowns))
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" font-family="sans-serif" '
        f'font-size="12">\n<rect width="{width}" height="{height}" fill="white"/>\n{body}\n</svg>\n'
    )


def _draw(slowdowns: Slowdowns) -> Iterator[str]:
    job = slowdowns.job
    title = f"Slowdown by worker (whole job: {slowdowns.slowdown:.3f})"
    yield f'<text x="10" y="20" font-weight="bold">{escape(title)}</text>'
    for pipeline in range(job.pipelines):
        x = _LEFT + pipeline * _CELL_WIDTH + _CELL_WIDTH // 2
        yield f'<text x="{x}" y="{_TOP - 8}" text-anchor="middle">DP {pipeline}</text>'
    for stage in range(job.stages):
        y = _TOP + stage * _CELL_HEIGHT
        yield f'<text x="{_LEFT - 8}" y="{y + 20}" text-anchor="end">stage {stage}</text>'
        for pipeline in range(job.pipelines):
            yield from _draw_cell(slowdowns, pipeline, stage)
    bottom = _TOP + job.stages * _CELL_HEIGHT + 22
    yield f'<text x="10" y="{bottom}">S with only this worker as measured; darkest from {_DARKEST}</text>'


def _draw_cell(slowdowns: Slowdowns, pipeline: int, stage: int) -> Iterator[str]:
    slowdown = slowdowns.by_worker[pipeline][stage]
    x, y = _LEFT + pipeline * _CELL_WIDTH, _TOP + stage * _CELL_HEIGHT
    depth = min(max((slowdown - 1) / (_DARKEST - 1), 0), 1)
    colour = "#" + "".join(
        f"{round(light + (dark - light) * depth):02x}" for light, dark in zip(_LIGHT, _DARK, strict=True)
    )
    text = "white" if depth > 1 / 2 else "black"
    yield (
        f'<rect x="{x}" y="{y}" width="{_CELL_WIDTH - 2}" height="{_CELL_HEIGHT - 2}" fill="{colour}">'
        f"<title>rank {slowdowns.job.ranks[pipeline][stage]}: {slowdown:.4f}</title></rect>"
    )
    middle = x + _CELL_WIDTH // 2 - 1
    yield f'<text x="{middle}" y="{y + 19}" text-anchor="middle" fill="{text}">{slowdown:.2f}</text>'
