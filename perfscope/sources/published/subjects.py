"""The model, the GPU and the precision of a row, by the names that people write.

Each is taken from the row's own cells, else from an option, else from the nearest heading that names one. A cell that
states a size alone is read with the family in a heading: ``70b`` under "MPT Training Benchmarks" is MPT-70B.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import cache
from typing import NamedTuple, TypeVar

from perfscope.constants import GIGA, MEGA, TERA
from perfscope.models.data_files import read_data
from perfscope.models.hardware import Gpu, describe_unlisted, lookup_gpu
from perfscope.models.parameter_counts import SAME_SIZE, active_parameters, total_parameters
from perfscope.models.transformer import ModelDescription
from perfscope.sources.models.presets import find_preset
from perfscope.tables.published import Subject

MODEL, GPU, DTYPE, RECOMPUTES = "model", "gpu", "dtype", "recomputes"
#: What a column of names states, by its heading.
NAMING = {name: re.compile(pattern) for name, pattern in read_data("headings")["naming"].items()}

_WORD = re.compile(r"[A-Za-z0-9.]*[A-Za-z0-9]")
_SIZE = re.compile(r"\d+(\.\d+)?[bmt]", re.IGNORECASE)
_LONGEST_MODEL = 6  # words of a name
_LONGEST_GPU = 4
_DTYPE = re.compile(r"nvfp4|mxfp[48]|(?<![a-z])fp(?:4|8|16|32)(?!\d)|float(?:8|16)|bf(?:loat)?16|tf32")
_DTYPES = {"float8": "fp8", "float16": "fp16", "bfloat16": "bf16"}
_NO = ("false", "no", "none", "off", "0")

_find_preset = cache(find_preset)
_T = TypeVar("_T")


class Names(NamedTuple):
    """What can name a subject: cells by what their column names, an option's GPU, headings (nearest first), the row."""

    cells: Mapping[str, str]
    gpu: Gpu | None
    headings: Sequence[str]
    row: str = ""


def find_subject(names: Names) -> Subject:
    """The subject of a row; what is not known has its reason in ``unknown``."""
    unknown: dict[str, str] = {}
    recomputes = names.cells.get(RECOMPUTES, "").lower()
    return Subject(
        model=_find_model(names, unknown),
        gpu=_find_gpu(names, unknown),
        dtype=_find_dtype(names, unknown),
        recomputes=recomputes not in _NO if recomputes else None,
        about=" ".join((names.row, *names.headings)),
        unknown=unknown,
    )


def _find_model(names: Names, unknown: dict[str, str]) -> ModelDescription | None:
    """The first text that names a model, or a size, decides."""
    cell = names.cells.get(MODEL, "")
    for place, text in enumerate((cell,) if cell else names.headings):
        words = _WORD.findall(text)
        found = dict(_scan(words, _LONGEST_MODEL, _find_preset))
        inside = {place for start, end in found for place in range(start, end)}
        sizes = [word for place, word in enumerate(words) if place not in inside and _SIZE.fullmatch(word)]
        if len(found) == 1:  # its own size stands beside some names: GPT-2 medium 355M
            sizes = [size for size in sizes if not _is_size_of(size, next(iter(found.values())))]
        if len(found) + len(sizes) > 1:
            unknown[MODEL] = f"{text!r} names no model that is known, or several"
            return None
        if found:
            return next(iter(found.values()))
        if sizes or cell:
            above = names.headings if cell else names.headings[place + 1 :]
            model = _find_in_family(sizes[0], above) if sizes else None
            unknown |= {} if model else {MODEL: f"the model {text!r} is not known by its name"}
            return model
    unknown[MODEL] = "no cell and no heading names a known model"
    return None


def _is_size_of(size: str, model: ModelDescription) -> bool:
    number = float(size[:-1]) * {"m": MEGA, "b": GIGA, "t": TERA}[size[-1].lower()]
    counts = total_parameters(model.transformer), active_parameters(model.transformer)
    return any(abs(number / count - 1) <= SAME_SIZE for count in counts)


def _find_in_family(size: str, headings: Sequence[str]) -> ModelDescription | None:
    """The model of a size, of a family that a heading names."""

    def find(family: str) -> ModelDescription | None:
        return _find_preset(f"{family} {size}")

    scans = (_scan(_WORD.findall(heading), _LONGEST_MODEL, find) for heading in headings)
    return next((model for scan in scans for _, model in scan), None)


def _scan(words: Sequence[str], longest: int, find: Callable[[str], _T | None]) -> Iterator[tuple[tuple[int, int], _T]]:
    """The names in a text, the longest first at each place, with the places of their words."""
    start = 0
    while start < len(words):
        for end in range(min(start + longest, len(words)), start, -1):
            found = find(" ".join(words[start:end]))
            if found is not None:
                yield (start, end), found
                start = end - 1
                break
        start += 1


def _find_gpu(names: Names, unknown: dict[str, str]) -> Gpu | None:
    cell = names.cells.get(GPU, "")
    texts = (cell,) if cell else names.headings if names.gpu is None else ()
    for text in texts:
        found = {gpu.name: gpu for gpu in _gpus_in(text)}
        if len(found) > 1:
            unknown[GPU] = f"{text!r} names several GPUs"
            return None
        if found:
            return next(iter(found.values()))
    if cell:
        unknown[GPU] = describe_unlisted(cell)
    elif names.gpu is None:
        unknown[GPU] = "the GPU's peak is not known: set --gpu"
    return None if cell else names.gpu


@cache
def _gpus_in(text: str) -> tuple[Gpu, ...]:
    whole = lookup_gpu(text)
    if whole is not None:
        return (whole,)
    return tuple(gpu for _, gpu in _scan(re.findall(r"[A-Za-z0-9]+", text), _LONGEST_GPU, _lookup_word))


def _lookup_word(word: str) -> Gpu | None:
    return lookup_gpu(word) if re.search(r"[A-Za-z].*\d|\d.*[A-Za-z]", word) else None


def _find_dtype(names: Names, unknown: dict[str, str]) -> str | None:
    """The data type that the precision of a cell, else of the nearest heading, names; two are ambiguous."""
    cell = names.cells.get(DTYPE, "")
    for text in (cell,) if cell else names.headings:
        found = {_DTYPES.get(name, name) for name in _DTYPE.findall(text.lower())}
        if len(found) > 1:
            unknown[DTYPE] = f"{text!r} names several precisions"
        if found:
            return next(iter(found)) if len(found) == 1 else None
    if cell:
        unknown[DTYPE] = f"the precision {cell!r} is not known"
    return None
