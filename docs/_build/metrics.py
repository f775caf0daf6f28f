"""The page of metrics: every key of every result with its definition, from the types of the JSON."""

from __future__ import annotations

import inspect
import re
from collections.abc import Iterator
from importlib import import_module
from typing import Any, get_args, get_type_hints

from perfscope.api.results import Results, type_of
from perfscope.engine.registry import FINDINGS, FINDINGS_MODULE, analyzers
from perfscope.result import describe, is_object

_HEAD = """# Metrics

What each key of `perfscope analyze --format json` is, and each attribute of a result in Python; formulas stand where a figure is computed
from others. Units are in the names: `_ns`, `_us`, `_s`, `_bytes`, `_w`, `_j`; shares are fractions of 1; what does not
exist is `null` in JSON and `None` in Python, and notes say why. The JSON of a result of traces has the key `window`, too: what
the window recorded that its times are of, `operators` or `light`. How figures are measured stands in
[traces](../traces.md), [wall clock](../wall-clock.md), [GPUs](../gpus.md), [TFLOPs and MFU](../tflops.md),
[pipeline bubbles](../bubble.md) and [what if](../whatif.md).
"""


def write_metrics() -> str:
    """The page: a section for each result, the method in the words of its analyzer, then every type in it."""
    blocks, written = [_HEAD], set[str]()
    for name in get_type_hints(Results):
        blocks += [f"## {name}\n", _method(name), *(_struct(kind) for kind in _structs(type_of(name), written))]
    return "\n".join(blocks)


def _method(name: str) -> str:
    """The words of the module that computes it: method, formulas, sources."""
    modules = {**{one.name: one.module for one in analyzers()}, FINDINGS: FINDINGS_MODULE}
    return (inspect.getdoc(import_module(modules[name])) or "").replace("``", "`") + "\n"


def _structs(kind: Any, written: set[str]) -> Iterator[type]:
    """A typed result and the types in it, each once."""
    if is_object(kind) and kind.__name__ not in written:
        written.add(kind.__name__)
        yield kind
        for hint, _ in describe(kind).values():
            yield from _structs(hint, written)
    for inner in get_args(kind):
        yield from _structs(inner, written)


def _struct(kind: type) -> str:
    """A type of a result: what it is, and a table of its keys."""
    lead = (inspect.getdoc(kind) or "").partition("Attributes:\n")[0]
    rows = [
        f"| `{key}` | `{_spell(hint)}` | {text.replace('``', '`').replace('|', chr(92) + '|')} |"
        for key, (hint, text) in describe(kind).items()
    ]
    head = f"### {kind.__name__}\n\n{' '.join(lead.replace('``', '`').split())}\n"
    return "\n".join([head, "| Key | Type | Definition |", "|:--|:--|:--|", *rows, ""])


def _spell(hint: object) -> str:
    text = hint.__name__ if isinstance(hint, type) and not get_args(hint) else str(hint)
    text = text.replace("typing.", "").replace("NoneType", "None")
    text = re.sub(r"perfscope\.[\w.]+\.(\w+)", r"\1", text)
    return text.replace("|", "\\|")
