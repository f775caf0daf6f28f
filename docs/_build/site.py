"""Hooks of mkdocs: pages that are generated at each build, and links that leave ``docs/``.

Reports, the change log and the guide for contributors are pages of the site, too. Links to code and raw files, which the
site does not hold, are shown as text.
"""

from __future__ import annotations

import posixpath
import re
from collections.abc import Callable
from pathlib import Path

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page

from docs._build.commands import write_commands
from docs._build.metrics import write_metrics
from docs._build.notebook import write_notebook

ROOT = Path(__file__).resolve().parents[2]
#: Files of the repository that are pages, by their path in it.
PAGES = {"CONTRIBUTING.md": "project/contributing.md", "CHANGELOG.md": "project/changelog.md"}
_NOTEBOOK = {"docs/notebook.ipynb": "notebook.md"}
GENERATED: dict[str, Callable[[], str]] = {
    "reference/commands.md": write_commands,
    "reference/metrics.md": write_metrics,
    "notebook.md": write_notebook,
}
_LINK = re.compile(r"(!?)\[((?:[^\[\]]|\[[^\]]*\])*)\]\(([^)\s]+)\)")
_FENCE = re.compile(r"(^```.*?^```)", re.MULTILINE | re.DOTALL)


def on_config(config: MkDocsConfig) -> MkDocsConfig:
    """List the page of each finding and each report in the navigation."""
    for section in config.nav or ():
        for pages in section.values():
            for entry in pages if isinstance(pages, list) else ():
                title, uri = next(iter(entry.items()))
                if uri == "findings.md":
                    entry[title] = [uri, *(f"findings/{path.name}" for path in sorted((ROOT / "docs" / "findings").iterdir()))]
                elif uri == "reports/index.md":
                    entry[title] = [uri, *sorted(name for name in pages_outside().values() if _is_report(name))]
    return config


def _is_report(uri: str) -> bool:
    return uri.startswith("reports/") and uri.endswith(".md") and uri != "reports/index.md"


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add the pages that do not lie in docs/."""
    for source, uri in pages_outside().items():
        path = ROOT / source
        files.append(File.generated(config, uri, content=path.read_text() if uri.endswith(".md") else path.read_bytes()))
    for uri, write in GENERATED.items():
        files.append(File.generated(config, uri, content=write()))
    return files


def on_page_markdown(markdown: str, page: Page, config: MkDocsConfig, files: Files) -> str:
    """Lead the links of a page to where their targets are on the site."""
    uri = page.file.src_uri
    if uri in GENERATED:
        return markdown
    source = next((path for path, target in pages_outside().items() if target == uri), f"docs/{uri}")
    pieces = _FENCE.split(markdown)
    return "".join(piece if piece.startswith("```") else _move_links(piece, source, uri) for piece in pieces)


def pages_outside() -> dict[str, str]:
    """Every page and picture outside of docs/: its path in the repository, and on the site."""
    reports = {f"reports/{path.name}": f"reports/{path.name}" for path in (ROOT / "reports").iterdir() if path.is_file()}
    return {**PAGES, **reports, "reports/README.md": "reports/index.md"}


def _move_links(markdown: str, source: str, uri: str) -> str:
    outside = pages_outside() | _NOTEBOOK

    def move(match: re.Match[str]) -> str:
        mark, text, target = match.groups()
        path, hash_sign, anchor = target.partition("#")
        if "://" in target or not path:
            return match[0]
        place = posixpath.normpath(posixpath.join(posixpath.dirname(source), path))
        on_site = outside.get(place, place.removeprefix("docs/") if place.startswith("docs/") else None)
        on_site = "index.md" if place == "README.md" else on_site
        if on_site is None:
            return text  # code and raw files are in the repository
        return f"{mark}[{text}]({posixpath.relpath(on_site, posixpath.dirname(uri) or '.')}{hash_sign}{anchor})"

    return _LINK.sub(move, markdown)
