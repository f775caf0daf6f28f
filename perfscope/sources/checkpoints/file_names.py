"""The kind of a checkpoint's files, and its layout, by the names of the files."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache

from perfscope.models.data_files import read_data
from perfscope.tables.checkpoint import Kind, Layout

_PATTERNS = tuple((re.compile(pattern), Kind[kind]) for pattern, kind in read_data("checkpoint_names")["files"])
_ENDINGS = (".pt", ".pth", ".bin", ".ckpt", ".distcp", ".safetensors", ".json", ".pkl", ".metadata")
_STATE_KINDS = frozenset(Kind) - {Kind.OTHER, Kind.METADATA}
_TRACKERS = ("latest", "latest_universal", "latest_checkpointed_iteration.txt")


@dataclass(frozen=True, slots=True)
class ParsedName:
    """The kind of a file, and the ranks, layer or expert that it belongs to."""

    kind: Kind
    ranks: Mapping[str, int]


@cache
def parse_name(path: str) -> ParsedName:
    """Parse the path of a file below the checkpoint.

    >>> parse_name("bf16_zero_pp_rank_3_mp_rank_00_optim_states.pt").ranks
    {'dp': 3, 'mp': 0}
    """
    if not path.endswith(_ENDINGS):
        return ParsedName(Kind.OTHER, {})
    parts = path.split("/")
    texts = tuple(dict.fromkeys((path, parts[-1], "/".join(parts[-2:]))))
    for pattern, kind in _PATTERNS:
        for text in texts:
            match = pattern.fullmatch(text)
            if match:
                ranks = {name: int(value) for name, value in match.groupdict().items() if value and value.isdigit()}
                return ParsedName(kind, ranks)
    return ParsedName(Kind.OTHER, {})


def holds_state(path: str) -> bool:
    """Whether a file holds weights or optimizer states, by its path."""
    return parse_name(path).kind in _STATE_KINDS


def is_tracker(name: str) -> bool:
    """Whether a file names the latest checkpoint of its folder."""
    return name in _TRACKERS


def find_layout(paths: Sequence[str]) -> Layout:
    """The layout of a checkpoint, by the paths of all its files."""
    kinds = {parse_name(path).kind for path in paths}
    names = {path.rpartition("/")[2] for path in paths}
    zero = any(name.endswith("_optim_states.pt") for name in names)
    megatron = bool(names & {"metadata.json", "common.pt"})
    weights = any(name.endswith(".safetensors") or name.startswith("pytorch_model") for name in names)
    rules = (
        (Kind.UNIVERSAL in kinds, Layout.DEEPSPEED_UNIVERSAL),
        ((Kind.SHARD in kinds or ".metadata" in names) and megatron, Layout.MEGATRON_DIST),
        (Kind.SHARD in kinds or ".metadata" in names, Layout.TORCH_DCP),
        (Kind.LAYER in kinds, Layout.DEEPSPEED_PIPELINE),
        (Kind.MODEL_METADATA in kinds, Layout.DEEPSPEED_ZERO_3),
        (zero, Layout.DEEPSPEED_ZERO_1_2),
        (Kind.MODEL in kinds or Kind.EXPERT in kinds, Layout.DEEPSPEED_ZERO_0),
        (bool(names & {"model_optim_rng.pt", "model_rng.pt", "distrib_optim.pt"}), Layout.MEGATRON_LEGACY),
        (weights, Layout.HUGGING_FACE),
        (bool(kinds & {Kind.MODEL_AND_OPTIMIZER, Kind.WEIGHTS, Kind.OPTIMIZER}), Layout.TORCH_FILE),
    )
    return next((layout for applies, layout in rules if applies), Layout.UNKNOWN)
