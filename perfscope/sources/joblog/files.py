"""Which files of the given paths are logs, and what their names state.

``61B-megatron-mbs-2-pp16-dp-1-gas-512-200977.out`` states size, batch and layout. Other forms:
``2n_8g_16dp_1mp_4bs``, ``gpt2-small_4n8g_bz4_zero_stage1_off.log`` and ``1n8g/bert_b32_fp32_4.log``.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from decimal import Decimal
from pathlib import Path

from perfscope.constants import GIGA, MEGA
from perfscope.errors import SourceError

_ENDINGS = (".out", ".log", ".txt", ".err")
#: Logs that trainers keep under a name of their own.
_STATE = "trainer_state.json"
_NAMES = {_STATE, "trainer_log.jsonl", "logging.jsonl"}
_DIGITS = re.compile(r"(\d+)")
_CHECKPOINT = re.compile(r"checkpoint-(\d{1,12})")


def find_logs(paths: Iterable[Path]) -> list[Path]:
    """Every named file, and every log below every named folder, in natural order; fails where a path does not exist."""
    logs: dict[Path, None] = {}
    for path in paths:
        if path.is_dir():
            logs.update(dict.fromkeys(sorted(_logs_below(path), key=natural_order)))
        elif path.exists():
            logs[path] = None
        else:
            raise SourceError(path, "does not exist")
    return list(logs)


def natural_order(path: Path) -> list[tuple[int, int | str]]:
    """A key that puts run 2 before run 10."""
    return [(0, int(part)) if part.isdigit() else (1, part) for part in _DIGITS.split(str(path))]


def _logs_below(folder: Path) -> Iterator[Path]:
    superseded: set[Path] = set()
    for parent, folders, names in os.walk(folder):
        superseded.update(_superseded_states(Path(parent), folders, names))
        for name in filter(is_log_name, names):
            path = Path(parent, name)
            if path.is_file() and path not in superseded:
                yield path


def is_log_name(name: str) -> bool:
    """Whether a file in a folder may be a log, by its name, or its path relative to the folder."""
    name = name.removesuffix(".gz")
    return name.endswith(_ENDINGS) or name.rpartition("/")[2] in _NAMES


def is_log(path: Path) -> bool:
    """Whether a file is a log, by its name."""
    return is_log_name(path.name) and path.is_file()


def _superseded_states(folder: Path, folders: Iterable[str], names: Iterable[str]) -> Iterator[Path]:
    """Of the ``trainer_state.json`` in the checkpoints of a run, those that a later one goes on from."""
    numbers = {int(number[1]): name for name in folders if (number := _CHECKPOINT.fullmatch(name))}
    is_last = _STATE not in names
    for _, name in sorted(numbers.items(), reverse=True):
        state = folder / name / _STATE
        if is_last and state.is_file():
            is_last = False
        else:
            yield state


_BEFORE = r"(?:(?<=[-_./ ])|^)"
_AFTER = r"(?=[-_./ ]|$)"
_COUNTS = {
    "tp": r"tp[-_]?(\d+)",
    "pp": r"pp[-_]?(\d+)",
    "dp": r"dp[-_]?(\d+)|(\d+)dp",
    "mp": r"mp[-_]?(\d+)|(\d+)mp",
    "gas": r"gas[-_]?(\d+)",
    "mbs": r"mbs[-_]?(\d+)|bs[-_]?(\d+)|bz[-_]?(\d+)|(\d+)m?bs|b(\d+)",
    "gbs": r"gbs[-_]?(\d+)",
    "gpus": r"(\d+)gpus?",
    "zero_stage": r"(?:ds-)?zero[-_]?(?:stage[-_]?)?(\d)|z(\d)",
    "seq_len": r"seq(?:len)?[-_]?(\d+)",
}
_PATTERNS = {name: re.compile(f"{_BEFORE}(?:{pattern}){_AFTER}", re.IGNORECASE) for name, pattern in _COUNTS.items()}
_MICRO = re.compile(rf"{_BEFORE}(?:mbs[-_]?(\d+)|(\d+)mbs){_AFTER}", re.IGNORECASE)
_CASE = re.compile(rf"{_BEFORE}(\d+)n[-_]?(\d+)g{_AFTER}", re.IGNORECASE)
_NODES = re.compile(rf"{_BEFORE}n(\d+){_AFTER}|{_BEFORE}(\d+)nodes?{_AFTER}", re.IGNORECASE)
_SIZE = re.compile(rf"{_BEFORE}(\d+(?:\.\d+)?)([BM]){_AFTER}")
_PRECISION = re.compile(rf"{_BEFORE}(fp32|fp16|bf16|fp8){_AFTER}", re.IGNORECASE)
_ENDING = re.compile(r"\.(?:out|log|txt|err|gz)$", re.IGNORECASE)


@dataclass(frozen=True, slots=True)
class FileName:
    """The facts in a path by name, as in ``JobLog.facts``; ``is_run`` if it has a size or a layout, and a batch."""

    facts: Mapping[str, int | str]
    is_run: bool


def parse_file_name(path: Path) -> FileName:
    """Read a log's name and that of its folder; the file's own name wins."""
    facts: dict[str, int | str] = {}
    for part in (path.parent.name, path.name):
        facts.update(_read(_stem(part)))
    if "mp" in facts:
        facts.setdefault("tp", facts.pop("mp"))
    is_run = ("parameters" in facts or "gpus_per_node" in facts) and "mbs" in facts
    return FileName(facts, is_run)


def _stem(name: str) -> str:
    shorter = _ENDING.sub("", name)
    return shorter if shorter == name else _stem(shorter)


def _read(text: str) -> dict[str, int | str]:
    facts: dict[str, int | str] = {}
    for name, pattern in _PATTERNS.items():
        match = (_MICRO.search(text) if name == "mbs" else None) or pattern.search(text)  # "bs4-mbs8" says both
        if match:
            facts[name] = int(next(group for group in match.groups() if group is not None))
    size = _SIZE.search(text)
    if size:
        facts["parameters"] = int(Decimal(size[1]) * (GIGA if size[2] == "B" else MEGA))
    case = _CASE.search(text)
    if case:
        facts["nodes"], facts["gpus_per_node"] = int(case[1]), int(case[2])
        facts["gpus"] = int(case[1]) * int(case[2])
    elif nodes := _NODES.search(text):
        facts["nodes"] = int(nodes[1] or nodes[2])
    precision = _PRECISION.search(text)
    if precision:
        facts["precision"] = precision[1].lower()
    return facts
