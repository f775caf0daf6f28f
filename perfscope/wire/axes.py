"""The axes of parallelism, and the names that frameworks give to the dimensions of device meshes.

``dp``, ``pp``, ``tp`` and ``cp`` multiply to the number of ranks. Experts stand on a mesh of their own over the same
ranks: ``ep``, ``etp`` (their tensors) and ``edp`` (their replicas) multiply nothing.
"""

from __future__ import annotations

from collections.abc import Mapping

#: The axes that multiply to the number of ranks.
FACTORS = ("dp", "pp", "tp", "cp")
_SAME_TOKENS = ("pp", "tp")

#: The axis of each usual name. Flattened dimensions are called by what they reduce: gradients, and the loss.
_NAMES = {
    "dp": "batch data data_parallel ddp dp dp_cp dp_replicate dp_shard dp_shard_cp dp_shard_in_ep dp_shard_mod_ep fsdp "
    "hsdp loss loss_mesh replicate shard",
    "pp": "pipe pipeline pipeline_parallel pp",
    "tp": "mp tensor tensor_parallel tp",
    "cp": "context context_parallel cp sequence_parallel sp",
    "edp": "edp efsdp",
    "ep": "ep expert expert_parallel",
    "etp": "etp",
}
MESH_AXES = {name: axis for axis, names in _NAMES.items() for name in names.split()}


def counts_tokens(coordinates: Mapping[str, int]) -> bool:
    """Whether a rank's tokens count, by its coordinates: stages and tensor-parallel ranks work on the same ones.

    Context-parallel ranks have a part of each sequence. Experts fold over replicas, which all count.

    >>> counts_tokens({"dp": 3, "ep": 3, "cp": 1}), counts_tokens({"dp": 0, "tp": 1})
    (True, False)
    """
    return all(coordinates.get(axis, 0) == 0 for axis in _SAME_TOKENS)


def counts_samples(coordinates: Mapping[str, int]) -> bool:
    """Whether a rank's samples count: context-parallel ranks share theirs.

    >>> counts_samples({"dp": 3, "ep": 3}), counts_samples({"dp": 0, "cp": 1})
    (True, False)
    """
    return counts_tokens(coordinates) and coordinates.get("cp", 0) == 0
