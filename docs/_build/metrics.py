"""The page of metrics: every key of every result with its definition, from the types of the JSON."""

from __future__ import annotations

import inspect
import re
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path
from typing import Any, get_args, get_type_hints

from perfscope.api import schema
from perfscope.api.results import Results, type_of
from perfscope.engine.registry import DERIVATIONS, analyzers
from perfscope.result import describe, is_object

_ORDER = ("windowed", "host", "pipelines")
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
    for name, hint in get_type_hints(Results).items():
        blocks += [f"## {name}\n", _method(name)]
        kinds = get_args(hint)
        result = next(kind for kind in kinds if kind.__name__ != "Absent")
        if is_object(result):
            blocks += [_struct(kind) for kind in _structs(type_of(name), written)]
            continue
        data = _name(get_args(result)[0])
        blocks.append(f"Type: [`{data}`](#{data.lower()}).\n")
    blocks.append("## Types\n")
    for module in _modules():
        classes = inspect.getmembers(import_module(f"perfscope.api.schema.{module}"), inspect.isclass)
        own = [kind for _, kind in classes if kind.__module__.endswith(f".{module}") and not kind.__name__.startswith("_")]
        blocks += [_type(kind) for kind in sorted(own, key=lambda kind: inspect.getsourcelines(kind)[1])]
    return "\n".join(blocks)


def _modules() -> list[str]:
    """The modules of the schema, the usual ones first."""
    stems = [path.stem for path in Path(schema.__file__).parent.glob("[a-z]*.py")]
    return [name for name in _ORDER if name in stems] + sorted(set(stems) - set(_ORDER))


def _method(name: str) -> str:
    """The words of the module that computes it: method, formulas, sources."""
    modules = {**{one.name: one.module for one in analyzers()}, **{one.name: one.module for one in DERIVATIONS}}
    return (inspect.getdoc(import_module(modules[name])) or "").replace("``", "`") + "\n"


def _name(kind: object) -> str:
    inner = get_args(kind)
    return getattr(inner[0] if inner else kind, "__name__", str(kind))


def _type(kind: type) -> str:
    """A type: what it is, and a table of its own keys; those of its bases stand there."""
    text = inspect.getdoc(kind) or ""
    lead, _, attributes = text.partition("Attributes:\n")
    rows = []
    for line in attributes.splitlines():
        if line.startswith("    ") and not line.startswith("     ") and ": " in line:
            rows.append(line.strip().split(": ", 1))
        elif rows and line.strip():
            rows[-1][1] += " " + line.strip()
    hints = inspect.get_annotations(kind)
    table = [f"| `{key}` | `{_spell(hints.get(key.split(', ')[0]))}` | {meaning.replace('``', '`').replace('|', chr(92) + '|')} |" for key, meaning in rows]
    bases = [base.__name__ for base in getattr(kind, "__orig_bases__", ()) if base.__name__ not in ("TypedDict", "_GroupWaitKinds")]
    more = f" It has the keys of [`{bases[0]}`](#{bases[0].lower()}), too." if bases else ""
    head = f"### {kind.__name__}\n\n{' '.join(lead.replace('``', '`').split())}{more}\n"
    return "\n".join([head, "| Key | Type | Definition |", "|:--|:--|:--|", *table, ""])


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
