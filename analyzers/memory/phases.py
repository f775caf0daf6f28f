"""The part of a training step that allocated something, told by the Python stack; and by whom.

torch runs the backward pass of a GPU in a thread of its own, which has no Python stack, or one without a main script.
"""

from __future__ import annotations

from collections.abc import Sequence
from enum import Enum
from typing import NamedTuple

from perfscope.tables.memory import AllocatorHistory, Frame

#: Frames that stand at the root of a thread that runs a script.
_ROOTS = ("<module>", "_run_module_as_main", "_bootstrap", "_run_code")
#: The root may stand behind so many outer frames of a launcher.
_OUTER_FRAMES = 3
_INNER_FRAMES = 6
_COMMUNICATION = (
    "torch/distributed/fsdp/",
    "torch/distributed/distributed_c10d.py",
    "torch/distributed/_functional_collectives.py",
    "torch/distributed/_tensor/",
    "torch/distributed/tensor/",
    "torch/distributed/algorithms/",
    "deepspeed/comm/",
    "deepspeed/runtime/comm/",
    "deepspeed/runtime/zero/partition_parameters.py",
    "deepspeed/runtime/zero/partitioned_param_coordinator.py",
    "megatron/core/distributed/",
    "megatron/core/tensor_parallel/mappings.py",
)
_OPTIMIZER = ("torch/optim/", "deepspeed/runtime/bf16_optimizer.py", "deepspeed/runtime/fp16/", "apex/optimizers/")
_OPTIMIZER_FUNCTIONS = ("step", "_optimizer_step", "_take_model_step")
_BACKWARD = ("torch/autograd/__init__.py", "torch/autograd/graph.py")
_RECOMPUTATION = "torch/utils/checkpoint.py"
_MODULE = "torch/nn/modules/module.py"
_MOVES = ("_apply", "convert", "to", "cuda")
_LIBRARIES = (
    "/torch/", "site-packages", "dist-packages", "/lib/python", "<frozen", "importlib",
    "/deepspeed/runtime/", "/deepspeed/utils/", "/deepspeed/comm/", "/megatron/core/",
)  # fmt: skip
#: What torch.compile generates; the frame behind it is the line of the script that it was made of.
_GENERATED = "/torchinductor_"


class Phase(Enum):
    """A part of a training step."""

    FORWARD = "forward"
    BACKWARD = "backward"
    OPTIMIZER = "optimizer"
    UNKNOWN = "unknown"


class StackFacts(NamedTuple):
    """What a stack tells.

    Attributes:
        phase: The part of the step.
        is_communication: Whether it allocates for collectives: gathered weights, buffers of gradients.
        is_recomputed: Whether a forward pass runs again inside the backward pass.
        is_move: Whether a module is moved to the device.
        place: The innermost line of the script, or of what it calls, such as ``train.py:12 forward``.
        operation: The innermost frame of all, code that torch.compile generated apart.
    """

    phase: Phase
    is_communication: bool = False
    is_recomputed: bool = False
    is_move: bool = False
    place: str = ""
    operation: str = ""


def read_stacks(history: AllocatorHistory) -> tuple[list[StackFacts], StackFacts]:
    """The facts of each stack of a history, and those of an allocation without a stack."""
    has_stacks = bool(history.stacks)
    nowhere = StackFacts(Phase.BACKWARD if has_stacks else Phase.UNKNOWN)
    return [_read_stack([history.frames[frame] for frame in stack]) for stack in history.stacks], nowhere


def _read_stack(frames: Sequence[Frame]) -> StackFacts:
    inner = frames[:_INNER_FRAMES]
    is_main = any(frame.function in _ROOTS for frame in frames[-_OUTER_FRAMES:])
    is_recomputed = not is_main and any(frame.file.endswith(_RECOMPUTATION) for frame in frames)
    return StackFacts(
        phase=_find_phase(frames, is_main=is_main),
        is_communication=any(_is_in(frame, _COMMUNICATION) for frame in inner),
        is_recomputed=is_recomputed,
        is_move=any(frame.file.endswith(_MODULE) and frame.function in _MOVES for frame in inner),
        place=next((_show(frame) for frame in frames if not _is_in(frame, (*_LIBRARIES, _GENERATED))), ""),
        operation=next((_show(frame) for frame in frames if _GENERATED not in frame.file), ""),
    )


def _find_phase(frames: Sequence[Frame], *, is_main: bool) -> Phase:
    if any(_is_in(frame, _OPTIMIZER) and not frame.function.startswith("zero_grad") for frame in frames):
        return Phase.OPTIMIZER
    if not is_main or any(frame.file.endswith(_BACKWARD) for frame in frames):
        return Phase.BACKWARD
    if any(frame.function in _OPTIMIZER_FUNCTIONS and "deepspeed/runtime" in frame.file for frame in frames):
        return Phase.OPTIMIZER
    return Phase.FORWARD


def _is_in(frame: Frame, folders: Sequence[str]) -> bool:
    return any(folder in frame.file for folder in folders)


def _show(frame: Frame) -> str:
    return f"{frame.file.rpartition('/')[2]}:{frame.line} {frame.function}"
