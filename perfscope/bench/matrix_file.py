"""A sweep as a TOML file: settings at its top, and tables ``[[rows]]`` of strategies with their options."""

from __future__ import annotations

import tomllib
from collections.abc import Mapping, Sequence
from pathlib import Path

from perfscope.bench.settings import Variant, choose_strategies, expand_matrix
from perfscope.errors import SourceError, UsageError

#: The keys of a table, with the values of an element; others are misspelled.
_ROW_KEYS = {"strategies": str, "nproc": int, "precision": str, "options": str}
#: Keys at the top: the options of the command that have one value.
SETTING_KEYS = {
    "model": str, "data": str, "devices": str, "batch-size": int, "weak": bool, "image-size": int, "warmup": int,
    "steps": int, "micro-batches": int, "split-size": int, "saves": bool, "launcher": str, "repetitions": int,
}  # fmt: skip
OPTION_SETS = {
    "plain": (),
    "recompute": ("recompute",),
    "compile": ("compile",),
    "recompute+compile": ("recompute", "compile"),
}
PRECISIONS = ("fp32", "bf16")


def read_matrix(path: Path) -> dict[str, object]:
    """Read a matrix file and check its keys and their types.

    Raises:
        SourceError: It is no TOML file, or has keys or values that mean nothing.
    """
    try:
        document = tomllib.loads(path.read_text())
    except OSError as error:
        raise SourceError(path, f"cannot be read: {error.strerror}") from None
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise SourceError(path, f"is not TOML: {error}") from None
    for key, value in document.items():
        if key == "rows":
            continue
        if key not in SETTING_KEYS:
            raise SourceError(path, f"has the unknown key {key!r}", hint=f"rows, {', '.join(SETTING_KEYS)}")
        if type(value) is not SETTING_KEYS[key]:
            raise SourceError(path, f"{key} must be of type {SETTING_KEYS[key].__name__}, not {value!r}")
    rows = document.get("rows")
    if not isinstance(rows, list) or not rows or not all(isinstance(row, dict) for row in rows):
        raise SourceError(path, "has no table [[rows]]", hint='[[rows]]\nstrategies = ["ddp"]\nnproc = [1, 2]')
    for row in rows:
        for key, value in row.items():
            kind = _ROW_KEYS.get(key)
            if kind is None:
                raise SourceError(path, f"[[rows]] has the unknown key {key!r}", hint=", ".join(_ROW_KEYS))
            if not isinstance(value, list) or not value or not all(type(item) is kind for item in value):
                raise SourceError(path, f"{key} must be a list of {kind.__name__}, not {value!r}")
    return document


def expand_rows(tables: object, typed: Mapping[str, Sequence[object]], precision: str) -> tuple[Variant, ...]:
    """The rows of tables, each once.

    Args:
        tables: Those of ``[[rows]]``.
        typed: Values that were typed, which replace those of every table.
        precision: For tables that name none.

    Raises:
        UsageError: A strategy, a precision or an option is unknown.
    """
    assert isinstance(tables, list)
    variants = [variant for table in tables for variant in _expand_table({**table, **typed}, precision)]
    return tuple(dict.fromkeys(variants))


def _expand_table(table: Mapping[str, Sequence[object]], precision: str) -> tuple[Variant, ...]:
    words = {key: [str(value) for value in values] for key, values in table.items()}
    return expand_matrix(
        choose_strategies(words.get("strategies", ["all"])),
        parse_nprocs(words.get("nproc", ["1"])),
        parse_precisions(words.get("precision", [precision])),
        parse_options(words.get("options", ["plain"])),
    )


def parse_nprocs(words: list[str]) -> list[int]:
    """Numbers of devices, ascending.

    Raises:
        UsageError: One is not a positive number.
    """
    if not all(word.isdigit() and int(word) > 0 for word in words):
        raise UsageError(f"--nproc {','.join(words)} is not a list of numbers", hint="write --nproc 1,2,4")
    return sorted({int(word) for word in words})


def parse_precisions(words: list[str]) -> list[str]:
    """The precisions of a list.

    Raises:
        UsageError: One is unknown.
    """
    for word in words:
        if word not in PRECISIONS:
            raise UsageError(f"there is no precision {word!r}", hint=f"some of: {', '.join(PRECISIONS)}")
    return words


def parse_options(words: list[str]) -> list[tuple[str, ...]]:
    """The sets of options of a list.

    Raises:
        UsageError: One is unknown.
    """
    for word in words:
        if word not in OPTION_SETS:
            raise UsageError(f"there is no option {word!r}", hint=f"some of: {', '.join(OPTION_SETS)}")
    return [OPTION_SETS[word] for word in words]
