"""Wrappers around what runs one pass of one micro-batch: torch.distributed.pipelining, DeepSpeed and Megatron-core.

Each reports the pass before and after it to the capture. None of them includes the waiting for another stage: the
frameworks receive before they call these functions, and send afterwards.
"""

from __future__ import annotations

import functools
import sys
from collections import Counter
from typing import TYPE_CHECKING, Any

from perfscope.hooks.guard import asked

if TYPE_CHECKING:
    from collections.abc import Callable
    from types import ModuleType

    from perfscope.hooks.capture import Capture
    from perfscope.hooks.pass_timer import Pass


def patch_torch_stages(module: ModuleType, capture: Capture) -> None:
    """Time the passes of every schedule of torch.distributed.pipelining: they all call these methods of a stage."""
    stage_class = module._PipelineStageBase
    forward, backward = stage_class.forward_one_chunk, stage_class.backward_one_chunk
    weight = getattr(stage_class, "backward_weight_one_chunk", None)

    @functools.wraps(forward)
    def forward_one_chunk(self: Any, fwd_chunk_id: int, *args: Any, **kwargs: Any) -> Any:
        if not asked(_training):
            return forward(self, fwd_chunk_id, *args, **kwargs)
        token = capture.pass_begins(asked(lambda: _torch_pass(self, "F", fwd_chunk_id)))
        try:
            return forward(self, fwd_chunk_id, *args, **kwargs)
        finally:
            capture.pass_ends(token)

    @functools.wraps(backward)
    def backward_one_chunk(self: Any, bwd_chunk_id: int, *args: Any, **kwargs: Any) -> Any:
        whole = kwargs.get("full_backward", args[1] if len(args) > 1 else True)
        token = capture.pass_begins(asked(lambda: _torch_pass(self, "B" if whole else "I", bwd_chunk_id)))
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
        token = capture.pass_begins(asked(lambda: _torch_pass(self, "W", bwd_chunk_id)))
        try:
            return weight(self, bwd_chunk_id, *args, **kwargs)
        finally:
            capture.pass_ends(token)

    stage_class.backward_weight_one_chunk = backward_weight_one_chunk


def _pass(*fields: Any) -> Pass:
    """Name a pass; its module is loaded where a pass runs, not in a launcher that imports a framework."""
    from perfscope.hooks.pass_timer import Pass

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
            if not asked(_training):
                return original(self, *args, **kwargs)
            number = counts[id(self), kind]
            counts[id(self), kind] += 1
            token = capture.pass_begins(
                asked(lambda: _pass(kind, number, self.stage_id, self.num_stages, self.stage_id, self.num_stages))
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


def patch_megatron_schedules(module: ModuleType, capture: Capture) -> None:
    """Time the passes of Megatron-core's schedules, which look these two functions up when they call them.

    ``backward_step`` is not told its micro-batch; what it is given is what a ``forward_step`` returned.
    """
    forward, backward = module.forward_step, module.backward_step
    places = _MegatronPlaces(module.parallel_state)

    @functools.wraps(forward)
    def forward_step(*args: Any, **kwargs: Any) -> Any:
        place = asked(lambda: places.forward(kwargs)) if asked(_training) else None
        if place is None:
            return forward(*args, **kwargs)
        token = capture.pass_begins(asked(lambda: places.named("F", place[1], place[0])))
        try:
            result = forward(*args, **kwargs)
        finally:
            capture.pass_ends(token)
        asked(lambda: places.remember(result[0] if isinstance(result, tuple) else result, *place))
        return result

    @functools.wraps(backward)
    def backward_step(input_tensor: Any, output_tensor: Any, *args: Any, **kwargs: Any) -> Any:
        place = asked(lambda: places.recall(output_tensor))
        if place is None:
            return backward(input_tensor, output_tensor, *args, **kwargs)
        token = capture.pass_begins(asked(lambda: places.named("B", place[1], place[0])))
        try:
            return backward(input_tensor, output_tensor, *args, **kwargs)
        finally:
            capture.pass_ends(token)

    module.forward_step = forward_step  # type: ignore[attr-defined]
    module.backward_step = backward_step  # type: ignore[attr-defined]


class _MegatronPlaces:
    """Which micro-batch of which chunk a call of Megatron's functions works on."""

    def __init__(self, parallel_state: Any) -> None:
        self._state = parallel_state
        self._outputs: dict[int, tuple[int, int]] = {}
        self._counts: Counter[int] = Counter()

    def devices(self) -> int:
        return int(self._state.get_pipeline_model_parallel_world_size())

    def named(self, kind: str, number: int, chunk: int) -> Pass:
        devices = self.devices()
        device = int(self._state.get_pipeline_model_parallel_rank())
        chunks = self._state.get_virtual_pipeline_model_parallel_world_size() or 1
        return _pass(kind, number, chunk * devices + device, chunks * devices, device, devices)

    def forward(self, kwargs: dict[str, Any]) -> tuple[int, int] | None:
        """Chunk and micro-batch of a forward pass, counted where nobody tells; None without a pipeline."""
        if self.devices() < 2:  # noqa: PLR2004 - one stage is no pipeline
            return None
        if not self._outputs:
            self._counts.clear()
        chunk = kwargs.get("vp_stage")
        if chunk is None:
            rank = getattr(self._state, "get_virtual_pipeline_model_parallel_rank", lambda: None)()
            chunk = rank or 0
        told = kwargs.get("current_microbatch")
        number = told if isinstance(told, int) else self._counts[chunk]
        self._counts[chunk] += 1
        return chunk, number

    def remember(self, output: Any, chunk: int, number: int) -> None:
        self._outputs[_identity(output)] = (chunk, number)

    def recall(self, output: Any) -> tuple[int, int] | None:
        return self._outputs.pop(_identity(output), None)


def _identity(output: Any) -> int:
    """The tensor itself, which stays the same object even when its memory is given back before the backward pass."""
    return id(output[0]) if isinstance(output, (list, tuple)) and output else id(output)


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
    "megatron.core.pipeline_parallel.schedules": [
        ("timing micro-batches of Megatron's pipelines", patch_megatron_schedules)
    ],
}
