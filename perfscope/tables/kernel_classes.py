"""Which kernels communicate, by their names, where the profiler's metadata does not state it.

``models/kernels.toml`` follows the libraries that people train with.
"""

from __future__ import annotations

import re

from perfscope.models.data_files import read_data
from perfscope.tables.trace import Work

_NAMES = read_data("kernels")
_IS_COMMUNICATION = re.compile("|".join(_NAMES["communication"]))
_IS_FUSED = re.compile("|".join(_NAMES["fused"]), re.IGNORECASE)
_IS_COPY = re.compile(_NAMES["copy"])
_LIKE_COMMUNICATION = re.compile(_NAMES["like_communication"], re.IGNORECASE)
_EVERYWHERE = re.compile(r"^void |\(anonymous namespace\)::|at::native::|at::|c10::|cutlass::|std::")


def classify(name: str) -> Work:
    """What a kernel of this name does.

    >>> classify("ncclDevKernel_AllReduce_Sum_f32_RING_LL(ncclDevKernelArgsStorage<4096ul>)").name
    'COMMUNICATION'
    >>> classify("void at::native::batch_norm_SyncBatchNorm_kernel<float>").name
    'COMPUTE'
    """
    if _IS_COMMUNICATION.search(name):
        return Work.COMMUNICATION
    if _IS_FUSED.search(name):
        return Work.FUSED
    return Work.COPY if _IS_COPY.search(name) else Work.COMPUTE


def looks_like_communication(name: str) -> bool:
    """Whether a kernel that is classified as compute has a name that suggests communication."""
    return bool(_LIKE_COMMUNICATION.search(name))


def classify_copy(name: str) -> Work:
    """What a copy of this name does: from device to device peer it is communication."""
    return Work.COMMUNICATION if "PtoP" in name else Work.COPY


def short_name(name: str, longest: int = 60) -> str:
    """A kernel's name without the words that most kernels' names have, cut to fit a table.

    >>> short_name("void at::native::(anonymous namespace)::vectorized_layer_norm_kernel<c10::BFloat16, float>(int)")
    'vectorized_layer_norm_kernel<BFloat16, float>'
    """
    short = _without_parameters(_EVERYWHERE.sub("", name))
    return short if len(short) <= longest else f"{short[: longest - 3]}..."


def _without_parameters(name: str) -> str:
    """A name without the list in parentheses that it ends with."""
    depth = 0
    for index in range(len(name) - 1, 0, -1):
        depth += (name[index] == ")") - (name[index] == "(")
        if depth <= 0:
            return name[:index].rstrip() if name.endswith(")") else name
    return name
