"""Which kernels communicate, by their names, where the profiler's metadata does not state it.

The table follows the libraries that people train with. A pattern is searched for in the name; the first that matches
decides. Patterns as general as ``hip``, ``Sync`` or ``dma`` are avoided: they would confuse compute with copies.
"""

from __future__ import annotations

import re

from perfscope.tables.trace import Work

_COMMUNICATION = (
    r"ncclDev(?:Kernel|Func)",
    r"ncclKernel_",
    r"ncclSym(?:k|m)?(?:Dev)?Kernel",
    r"\bnccl[A-Z]\w*",
    r"rcclGenericKernel|\brccl_main_kernel",
    r"\bmscclpp|\bmsccl\w*Kernel|\bmscclKernel",
    r"\bhccl|\bhcom_",
    r"\boneccl|\bccl::",
    # torchcomms, and Meta's libraries below it
    r"\bctranKernel[A-Z]|\bmcclKernel",
    # torch symmetric memory
    r"multimem_(?:one_shot_|two_shot_)?(?:all_?reduce|all_?gather|reduce_?scatter)",
    r"(?:one|two)_shot_all_?reduce",
    r"reduce_scatter\w*multimem",
    r"all_to_all_vdev|allToAllV",
    # custom all-reduce of inference engines
    r"cross_device_reduce_[12]stage",
    r"allreduce_fusion_kernel",
    r"(?:one|two)[sS]hotAll[rR]educe",
    r"lamport",
    r"\ball_?reduce_[12]stage|\bqr_all_?reduce|\bquickreduce::\w*all_?reduce|\bkernel_nvls_\w*all_?reduce",
    # expert parallelism: DeepEP and what follows it; kernels that lay out, scan or permute tokens compute
    r"\b(?:deep_ep|dpsk::ep|uccl)::(?:legacy::|ep::)?(?:intranode|internode|internode_ll)::(?:cached_notify_)?"
    r"(?:notify_)?(?:dispatch|combine|cached_notify)",
    r"\bdeep_ep::(?:ep|comm)::(?:\w+::)*\w*(?:dispatch|combine|barrier|prefetch_weights|reduce_grads)",
    r"\bnccl_ep(?:_jit_|::(?:\w+::)*)\w*(?:dispatch|combine|barrier|sync)",
    r"\bhybrid_ep::(?:\w+::)*\w*(?:dispatch|combine|sync)_kernel",
    r"\bEp(?:Dispatch|Combine)\w*Kernel",
    r"\bmoeA2A\w*Kernel|\bmoe_?[aA]ll[tT]oAll\w*Kernel",
    r"\bpplx::(?:\w+::)*\w*(?:dispatch|combine)|\ba2a_(?:dispatch|combine)_(?:send|recv)_kernel",
    r"\bnvshmem(?:i|x)?_|\bnvshmem(?:i|x)?[A-Z]|\brocshmem",
    r"userbuffers_fp16_sum_inplace|kuserbuffers_(?:push|pull)(?:send|recv)",
)
#: Kernels with which ROCm copies and fills.
_IS_COPY = re.compile(r"^__amd_rocclr_(?:fill|copy)(?:Buffer|Image)\w*")
_FUSED = (
    r"flux::\w*(?:gemm_rs|ag_gemm|all_gather_gemm|gemm_reduce_scatter)",
    r"all_?gather_(?:gemm|matmul)|(?:gemm|matmul)_(?:reduce_?scatter|all_?reduce)",
)
_LIKE_COMMUNICATION = re.compile(
    r"reduce_?scatter|all_?reduce|all_?gather|all_?to_?all|\bsend\b|\brecv\b", re.IGNORECASE
)
_EVERYWHERE = re.compile(r"^void |\(anonymous namespace\)::|at::native::|at::|c10::|cutlass::|std::")
_IS_COMMUNICATION = re.compile("|".join(_COMMUNICATION))
_IS_FUSED = re.compile("|".join(_FUSED), re.IGNORECASE)


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
