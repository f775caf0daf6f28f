from __future__ import annotations

import re
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path
from types import ModuleType

import pytest

from perfscope.patterns import compile_later
from tests.conftest import ROOT

_USE = re.compile(r"^from perfscope\.patterns import", re.MULTILINE)


def modules() -> list[str]:
    """The modules with patterns that are compiled later."""
    paths = [path for path in (ROOT / "perfscope").rglob("*.py") if _USE.search(path.read_text())]
    paths += [path for top in ("analyzers",) for path in (ROOT / top).rglob("*.py") if _USE.search(path.read_text())]
    return sorted({_module_of(path.relative_to(ROOT)) for path in paths})


def _module_of(path: Path) -> str:
    parts = path.with_suffix("").parts
    return ".".join(parts if parts[0] == "perfscope" else ("perfscope", *parts))


def patterns_of(value: object) -> Iterator[re.Pattern[str]]:
    """The patterns that are a value, or members of its tuples."""
    if isinstance(value, tuple):
        for member in value:
            yield from patterns_of(member)
    elif type(value) is type(compile_later("")):
        yield value


@pytest.mark.parametrize("name", modules())
def test_every_pattern_that_is_compiled_later_can_be_compiled(name: str) -> None:
    module: ModuleType = import_module(name)
    patterns = [pattern for value in vars(module).values() for pattern in patterns_of(value)]
    assert patterns
    for pattern in patterns:
        assert re.compile(pattern.pattern, pattern.flags).groups == pattern.groups


@pytest.mark.parametrize("text", ["", "a1b22", "AB", "a\nb9"])
@pytest.mark.parametrize(("pattern", "flags"), [(r"(?P<letter>[a-z])(\d+)", 0), (r"^b", re.IGNORECASE | re.MULTILINE)])
def test_a_pattern_that_is_compiled_later_finds_what_a_compiled_one_does(pattern: str, flags: int, text: str) -> None:
    compiled = re.compile(pattern, flags)
    for method in ("search", "match", "fullmatch"):
        found, expected = (getattr(each, method)(text) for each in (compile_later(pattern, flags), compiled))
        assert (found and found.span(), found and found.groupdict()) == (
            expected and expected.span(),
            expected and expected.groupdict(),
        )
    later = compile_later(pattern, flags)
    assert later.findall(text) == compiled.findall(text)
    assert later.sub("<>", text) == compiled.sub("<>", text)
    assert [match.span() for match in later.finditer(text)] == [match.span() for match in compiled.finditer(text)]
    assert (later.pattern, later.flags, later.groups) == (compiled.pattern, compiled.flags, compiled.groups)
    assert later.groupindex == compiled.groupindex


def test_bytes_are_searched_too() -> None:
    assert compile_later(rb"\d").findall(b"a1b2") == [b"1", b"2"]


def test_a_pattern_has_no_other_attributes() -> None:
    with pytest.raises(AttributeError):
        compile_later("a").compile  # type: ignore[attr-defined] # noqa: B018


def test_it_is_compiled_once(monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[str] = []
    real = re.compile

    def count(text: str, flags: int) -> re.Pattern[str]:
        made.append(text)
        return real(text, flags)

    monkeypatch.setattr(re, "compile", count)
    pattern = compile_later("b+")
    assert not made
    assert [bool(pattern.search(text)) for text in ("abb", "a")] == [True, False]
    assert pattern.match("b")
    assert made == ["b+"]
