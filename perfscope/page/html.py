"""Writes a page as HTML: one file with its style and its script in it, which asks no server for anything.

Everything that comes from a run is escaped, and the policy at the top of the page lets no other script run, nor any
request be made.
"""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Iterator, Sequence
from html import escape
from importlib.resources import files

from perfscope.charts.palette import style_rules, style_variables
from perfscope.charts.svg import LONGEST_TEXT, draw
from perfscope.constants import MANY_RANKS
from perfscope.page.part import PageDocument, PageFigure, PagePart, Tile
from perfscope.report import Cell, Column, Section, escape_control_characters, shorten_warnings


def render(document: PageDocument) -> str:
    """The whole page."""
    style = style_variables() + style_rules() + read_asset("page.css")
    script = read_asset("page.js") + read_asset("timeline.js")
    policy = (
        f"default-src 'none'; style-src '{_digest(style)}'; script-src '{_digest(script)}'; img-src data:; "
        "base-uri 'none'; form-action 'none'"
    )
    return "\n".join(
        (
            '<!doctype html>\n<html lang="en">\n<head>\n<meta charset="utf-8">',
            f'<meta http-equiv="Content-Security-Policy" content="{policy}">',
            '<meta name="viewport" content="width=device-width, initial-scale=1">',
            '<meta name="color-scheme" content="light dark">\n<meta name="referrer" content="no-referrer">',
            f"<title>{clean(document.title)} · perfscope</title>\n<style>{style}</style>\n</head>\n<body>",
            '<a class="skip" href="#main">Skip to the findings</a>',
            *_head(document),
            '<div class="columns">',
            *_navigation(document.parts),
            '<main id="main" tabindex="-1">',
            *(line for part in document.parts if not part.drawn.absent for line in _part(part)),
            *_absences(document.parts),
            "</main>\n</div>",
            "<footer><p>Written by perfscope. The page is one file and asks no server for anything.</p></footer>",
            f'<div id="tip" role="presentation" hidden></div>\n<script>{script}</script>\n</body>\n</html>\n',
        )
    )


def clean(text: str) -> str:
    """A text of a run for HTML: without what reorders other text, and not longer than anyone reads."""
    visible = escape_control_characters(text[: 2 * LONGEST_TEXT])
    return escape(visible if len(visible) <= LONGEST_TEXT else visible[: LONGEST_TEXT - 1] + "…")


def _write_table(section: Section, caption: str) -> str:
    """A section's table; numbers keep their full precision as data."""
    rows = section.rows[:MANY_RANKS]
    heads = "".join(f'<th scope="col">{clean(column.heading)}</th>' for column in section.columns)
    body = "\n".join(
        f"<tr>{''.join(_cell(cell, column) for cell, column in zip(row, section.columns, strict=True))}</tr>"
        for row in rows
    )
    label = escape(caption, quote=True)
    left_out = len(section.rows) - len(rows)
    more = f"<p>{left_out} more rows are in <code>perfscope analyze --format json</code>.</p>" if left_out > 0 else ""
    return (
        f'<div class="scroll" tabindex="0" role="region" aria-label="{label}"><table>'
        f"<caption>{clean(caption)}</caption><thead><tr>{heads}</tr></thead><tbody>\n{body}\n</tbody></table></div>{more}"
    )


def _cell(cell: Cell, column: Column) -> str:
    if cell is None:
        return '<td class="none">n/a</td>'
    if isinstance(cell, str):
        return f"<td>{clean(cell)}</td>"
    text = f"{cell:,}" if isinstance(cell, int) else f"{cell:,.{column.decimals}f}"
    return f'<td class="number" data-value="{cell!r}">{text}</td>'


def _write_notes(notes: Sequence[str]) -> str:
    return f'<ul class="notes">{"".join(f"<li>{with_code(note)}</li>" for note in notes)}</ul>' if notes else ""


def with_code(note: str) -> str:
    """A sentence whose words between backticks are code."""
    pieces = note.split("`")
    if len(pieces) % 2 == 0:
        return _escape_long(note)
    return "".join(
        f"<code>{_escape_long(piece)}</code>" if index % 2 else _escape_long(piece)
        for index, piece in enumerate(pieces)
    )


def _escape_long(text: str) -> str:
    return "".join(clean(text[start : start + LONGEST_TEXT]) for start in range(0, len(text), LONGEST_TEXT))


def _digest(text: str) -> str:
    return f"sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}"


def read_asset(name: str) -> str:
    """A file beside this module that a page is made of."""
    return files("perfscope.page").joinpath("assets", name).read_text(encoding="utf-8")


def _head(document: PageDocument) -> Iterator[str]:
    yield f'<header>\n<p class="brand">perfscope</p>\n<h1>{_words(document.title)}</h1>'
    if document.facts:
        yield f'<p class="facts">{"".join(f"<span>{clean(fact)}</span>" for fact in document.facts)}</p>'
    if document.command:
        yield f"<details><summary>Command</summary><p><code>{_escape_long(document.command)}</code></p></details>"
    if document.damage:
        lines = "".join(f"<li>{clean(line)}</li>" for line in shorten_warnings(document.damage))
        title = "Parts of this run are missing or damaged. The page shows the rest."
        yield f'<section class="damage" aria-label="Damage"><p><strong>{title}</strong></p><ul>{lines}</ul></section>'
    if document.remarks:
        yield f'<div class="remarks">{_write_notes(document.remarks)}</div>'
    if document.tiles:
        yield f'<dl class="tiles">{"".join(map(_tile, document.tiles))}</dl>'
    yield "</header>"


def _words(title: str) -> str:
    """A heading whose words are broken only where they are too long for a line."""
    words = clean(title[: 4 * LONGEST_TEXT]).split(" ")
    return " ".join(f"<span>{word}</span>" for word in words)


def _tile(tile: Tile) -> str:
    return (
        f'<div><dt>{clean(tile.label)}</dt><dd data-pointer="{escape(tile.pointer)}" data-value="{tile.value!r}">'
        f"{clean(tile.text)}</dd></div>"
    )


def _navigation(parts: Sequence[PagePart]) -> Iterator[str]:
    shown = (part for part in parts if not part.drawn.absent)
    links = "".join(f'<li><a href="#{part.identity}">{clean(part.title)}</a></li>' for part in shown)
    summary = "<details open><summary>Contents</summary>"
    yield f'<nav aria-label="Parts of this page">{summary}<ol>{links}</ol></details></nav>'


def _part(part: PagePart) -> Iterator[str]:
    yield f'<section id="{part.identity}" class="part" aria-labelledby="{part.identity}-h">'
    yield f'<h2 id="{part.identity}-h">{clean(part.title)}</h2>'
    if part.drawn.lead:
        yield f'<p class="lead">{with_code(part.drawn.lead)}</p>'
    yield part.drawn.html
    yield from (_figure(figure, f"{part.identity}-{number}") for number, figure in enumerate(part.drawn.figures))
    yield from map(_section, part.sections)
    yield "</section>"


def _absences(parts: Sequence[PagePart]) -> Iterator[str]:
    """One line for all parts without data, by the reason."""
    titles: dict[str, list[str]] = {}
    for part in parts:
        if part.drawn.absent:
            titles.setdefault(part.drawn.absent, []).append(part.title)
    if titles:
        line = "; ".join(f"{', '.join(names)} ({reason})" for reason, names in titles.items())
        yield f'<p class="absence">{with_code(f"Nothing to show of: {line}.")}</p>'


def _figure(figure: PageFigure, identity: str) -> str:
    title = figure.charts[0].title
    details = (
        f"<details><summary>Figures of this chart</summary>{_write_table(figure.values, title)}"
        f"{_write_notes(figure.values.notes)}</details>"
    )
    return (
        f'<figure id="{identity}"><figcaption><h3>{clean(title)}</h3></figcaption>'
        f'<div class="scroll chart-scroll" tabindex="0" role="region" aria-label="{clean(title)}">'
        f"{draw(figure.charts, identity)}</div>{details}</figure>"
    )


def _section(section: Section) -> str:
    drawing = ""
    if section.drawing:
        drawing = f'<pre class="scroll" tabindex="0">{escape(escape_control_characters(section.drawing))}</pre>'
    if not section.columns:
        return f"<h3>{clean(section.title)}</h3>{drawing}{_write_notes(section.notes)}"
    return (
        f"<details><summary>Table: {clean(section.title)}</summary>{drawing}"
        f"{_write_table(section, section.title)}{_write_notes(section.notes)}</details>"
    )
