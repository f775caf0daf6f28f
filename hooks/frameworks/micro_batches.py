"""Wrappers around what runs one pass of one micro-batch: torch.distributed.pipelining and DeepSpeed.

Each reports the pass before and after it to the capture. None of them includes the waiting for another stage: the
frameworks receive before they call these functions, and send afterwards.
"""

from __future__ import annotations

import functools
import sys
from collections import Counter
from typing import TYPE_CHECKING, Any

from perfscope.hooks.guard import value_or_none

if TYPE_CHECKING:
    from collections.abc import Callable
    from types import ModuleType

    from perfscope.hooks.capture import Capture
    from perfscope.hooks.timers.passes import Pass


def patch_torch_stages(module: ModuleType, capture: Capture) -> None:
    """Time the passes of every schedule of torch.distributed.pipelining: they all call these methods of a stage."""
    stage_class = module._PipelineStageBase
    forward, backward = stage_class.forward_one_chunk, stage_class.backward_one_chunk
    weight = getattr(stage_class, "backward_weight_one_chunk", None)

    @functools.wraps(forward)
    def forward_one_chunk(self: Any, fwd_chunk_id: int, *args: Any, **kwargs: Any) -> Any:
        if not value_or_none(_training):
            return forward(self, fwd_chunk_id, *args, **kwargs)
        token = capture.pass_begins(lambda: _torch_pass(self, "F", fwd_chunk_id))
        try:
            return forward(self, fwd_chunk_id, *args, **kwargs)
        finally:
            capture.pass_ends(token)

    @functools.wraps(backward)
    def backward_one_chunk(self: Any, bwd_chunk_id: int, *args: Any, **kwargs: Any) -> Any:
        whole = kwargs.get("full_backward", args[1] if len(args) > 1 else True)
        token = capture.pass_begins(lambda: _torch_pass(self, "B" if whole else "I", bwd_chunk_id))
        try:
            return backward(self, bwd_chunk_id, *args, **kwargs)
        finally:
            capture.pass_ends(token)

    stage_class.forward_one_chunk = forward_one_chunk
    stage_class.backward_one_chunk = backward_one_chunk
    if weight is None:
        return

    @functools.wraps(weight)
    def backward_weight_one_chunk(self: Any, bwd_chunk_id: int, *args: Any, **kwargs: Any) -> Any:
        token = capture.pass_begins(lambda: _torch_pass(self, "W", bwd_chunk_id))
        try:
            return weight(self, bwd_chunk_id, *args, **kwargs)
        finally:
            capture.pass_ends(token)

    stage_class.backward_weight_one_chunk = backward_weight_one_chunk


def _pass(*fields: Any) -> Pass:
    """Name a pass; its module is loaded where a pass runs, not in a launcher that imports a framework."""
    from perfscope.hooks.timers.passes import Pass

    return Pass(*fields)


def _torch_pass(stage: Any, kind: str, chunk: int) -> Pass:
    return _pass(kind, chunk, stage.stage_index, stage.num_stages, stage.group_rank, stage.group_size)


def patch_deepspeed_instructions(module: ModuleType, capture: Capture) -> None:
    """Time the passes of PipelineEngine.

    Its instructions are looked up in a dictionary of plain functions, so patching the methods would change nothing. A
    buffer is used again for later micro-batches; their number is counted from the beginning of ``train_batch``.
    """
    engine_class = module.PipelineEngine
    schedule = module.schedule
    train_batch = engine_class.train_batch
    counts: Counter[tuple[int, str]] = Counter()

    @functools.wraps(train_batch)
    def counting_train_batch(self: Any, *args: Any, **kwargs: Any) -> Any:
        counts.clear()
        return train_batch(self, *args, **kwargs)

    def timed(kind: str, original: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(original)
        def instruction(self: Any, *args: Any, **kwargs: Any) -> Any:
            if not value_or_none(_training):
                return original(self, *args, **kwargs)
            number = counts[id(self), kind]
            counts[id(self), kind] += 1
            token = capture.pass_begins(
                lambda: _pass(kind, number, self.stage_id, self.num_stages, self.stage_id, self.num_stages)
            )
            try:
                return original(self, *args, **kwargs)
            finally:
                capture.pass_ends(token)

        return instruction

    engine_class.train_batch = counting_train_batch
    for owner in [engine_class, *_subclasses(engine_class)]:
        instructions = vars(owner).get("_INSTRUCTION_MAP")
        if instructions is not None:
            for kind, instruction in (("F", schedule.ForwardPass), ("B", schedule.BackwardPass)):
                instructions[instruction] = timed(kind, instructions[instruction])


def _training() -> bool:
    return bool(sys.modules["torch"].is_grad_enabled())


def _subclasses(parent: Any) -> list[Any]:
    found = []
    for child in parent.__subclasses__():
        found += [child, *_subclasses(child)]
    return found


PATCHES: dict[str, list[tuple[str, Callable[[ModuleType, Capture], None]]]] = {
    "torch.distributed.pipelining.stage": [("timing micro-batches of torch's pipelines", patch_torch_stages)],
    "deepspeed.runtime.pipe.engine": [("timing micro-batches of DeepSpeed's pipelines", patch_deepspeed_instructions)],
}
