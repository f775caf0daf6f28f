"""The documentation site builds without a warning, needs no network, and lists every command, metric and finding."""

from __future__ import annotations

import re
import sys
from functools import cache
from html import unescape
from pathlib import Path
from typing import Any

import nbclient
import nbformat
import pytest
import typer

from perfscope.cli import COMMANDS, app
from perfscope.result import describe
from tests.api.test_schema import structs, types
from tests.conftest import ROOT, run

DOCS = ROOT / "docs"
OUTSIDE = re.compile(r"""(?:src|href)=["']?(https?:)?//|@import|url\(["']?https?:""")


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The built site; --strict fails on a link that leads nowhere."""
    folder = tmp_path_factory.mktemp("site")
    # A proxy that nobody serves: a build that asks the network fails.
    offline = {"NO_MKDOCS_2_WARNING": "1", "http_proxy": "http://127.0.0.1:9", "https_proxy": "http://127.0.0.1:9"}
    ended = run([sys.executable, "-m", "mkdocs", "build", "--strict", "-q", "-d", folder], ROOT, **offline)
    assert ended.code == 0, ended.stderr
    return folder


def text_of(page: Path) -> str:
    return unescape(re.sub(r"<[^>]+>", "", page.read_text()))


def test_no_page_loads_anything_from_the_network(site: Path) -> None:
    for page in site.rglob("*.html"):
        loaded = re.findall(r"<(?:script|link|img|iframe)\b[^>]*>", page.read_text())
        foreign = [tag for tag in loaded if OUTSIDE.search(tag) and 'rel="canonical"' not in tag]
        assert not foreign, page


def test_every_page_of_docs_is_on_the_site(site: Path) -> None:
    sources = {path.relative_to(DOCS).with_suffix(".html") for path in DOCS.rglob("*.md")}
    assert sources <= {path.relative_to(site) for path in site.rglob("*.html")}
    assert {Path("reports") / f"{path.stem}.html" for path in (ROOT / "reports").glob("*-*.md")} <= {
        path.relative_to(site) for path in site.rglob("*.html")
    }


def test_every_command_and_option_is_in_the_reference(site: Path) -> None:
    text = text_of(site / "reference" / "commands.html")
    for words, command in commands():
        assert f"perfscope {words}" in text
        for option in command.params:
            assert option.param_type_name != "option" or option.opts[0] in text, (words, option.opts)


def commands() -> list[tuple[str, Any]]:
    group: Any = typer.main.get_command(app)
    context = typer.Context(group)
    listed: list[tuple[str, Any]] = []
    for name in COMMANDS:
        command = group.get_command(context, name)
        inner = getattr(command, "commands", None)
        listed += [(f"{name} {word}", each) for word, each in inner.items()] if inner else [(name, command)]
    return listed


def test_every_metric_is_in_the_reference(site: Path) -> None:
    text = text_of(site / "reference" / "metrics.html")
    kinds: dict[str, type] = {}
    for hint in types().values():
        structs(hint, kinds)
    keys = {key for kind in kinds.values() for key in describe(kind)}
    assert len(keys) > 400
    assert not [key for key in keys if key not in text]


@cache
def notebook() -> Any:
    return nbformat.read(DOCS / "notebook.ipynb", as_version=4)  # type: ignore[no-untyped-call]


@pytest.mark.filterwarnings("ignore")
def test_the_notebook_shows_what_it_was_saved_with() -> None:
    executed = nbformat.from_dict(notebook())  # type: ignore[no-untyped-call]
    client = nbclient.NotebookClient(executed, timeout=120, resources={"metadata": {"path": str(DOCS)}})
    client.execute()
    for cell, saved in zip(executed.cells, notebook().cells, strict=True):
        for output, expected in zip(cell.get("outputs", []), saved.get("outputs", []), strict=True):
            assert output["data"] == expected["data"]


def test_the_examples_in_python_print_what_they_say(tmp_path: Path) -> None:
    """A comment at the end of a block is what it prints."""
    blocks = re.findall(r"```python\n(.*?)```", (DOCS / "python.md").read_text(), re.DOTALL)
    assert len(blocks) >= 5
    expected = [
        line.removeprefix("#").removeprefix(" ") for line in "".join(blocks).splitlines() if line.startswith("#")
    ]
    (tmp_path / "fixtures").symlink_to(ROOT / "fixtures")
    (tmp_path / "example.py").write_text("\n".join(blocks))
    ended = run([sys.executable, "example.py"], tmp_path)
    assert ended.code == 0, ended.stderr
    assert [line.strip() for line in ended.stdout.splitlines()] == [line.strip() for line in expected]
