"""Hooks around what runs one pass of one micro-batch in Megatron-core's schedules.

The schedules receive before they call these functions and send afterwards, so that no waiting for another stage is
in a pass.
"""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, Any

from perfscope.hooks.frameworks.wrapping import argument, parameter_names, time_passes, whole_number
from perfscope.hooks.introspection import is_grad_enabled

if TYPE_CHECKING:
    from collections.abc import Mapping

    from perfscope.hooks.capture import Capture
    from perfscope.hooks.frameworks.wrapping import Patches
    from perfscope.hooks.timers.passes import TimedPass

_MAX_PENDING = 4096


def patch_schedules(module: Any, capture: Capture) -> None:
    """Time the passes of Megatron-core's schedules, which look these two functions up when they call them.

    ``backward_step`` does not get its micro-batch as an argument: it gets what a ``forward_step`` returned.
    """
    forward, backward = module.forward_step, module.backward_step
    passes = _Passes(module.parallel_state, parameter_names(forward))

    def begin_forward(*args: object, **kwargs: object) -> TimedPass | None:
        passes.running = passes.position_of_forward(args, kwargs) if is_grad_enabled() else None
        return None if passes.running is None else capture.on_pass_begin("F", **passes.running)

    def begin_backward(*args: object, **kwargs: object) -> TimedPass | None:
        position = passes.pop_forward(argument(backward, "output_tensor", args, kwargs))
        return None if position is None else capture.on_pass_begin("B", **position)

    module.forward_step = time_passes(forward, capture, begin_forward, is_forward=True, on_result=passes.add_forward)
    module.backward_step = time_passes(backward, capture, begin_backward, is_forward=False)


class _Passes:
    """Which micro-batch of which chunk a call of Megatron's functions works on."""

    def __init__(self, parallel_state: Any, names: tuple[str, ...]) -> None:
        self._state = parallel_state
        self._names = names
        self._counts: Counter[int] = Counter()
        #: The forward passes whose backward pass did not come yet, by the tensor that they returned.
        self._pending: dict[int, Mapping[str, int]] = {}
        #: The position of the forward pass that runs.
        self.running: Mapping[str, int] | None = None

    def position_of_forward(self, args: tuple[object, ...], kwargs: dict[str, object]) -> Mapping[str, int] | None:
        """Locate a forward pass, by count where this version does not pass its micro-batch; None without stages."""
        devices = int(self._state.get_pipeline_model_parallel_world_size())
        if devices == 1:
            return None
        arguments = {**dict(zip(self._names, args, strict=False)), **kwargs}
        if not self._pending:
            self._counts.clear()
        chunk = whole_number(arguments.get("vp_stage"))
        if chunk is None:
            chunk = getattr(self._state, "get_virtual_pipeline_model_parallel_rank", lambda: None)() or 0
        microbatch = whole_number(arguments.get("current_microbatch"))
        if microbatch is None:
            microbatch = self._counts[chunk]
        self._counts[chunk] += 1
        device = int(self._state.get_pipeline_model_parallel_rank())
        chunks = self._state.get_virtual_pipeline_model_parallel_world_size() or 1
        return {
            "microbatch": microbatch,
            "stage": chunk * devices + device,
            "stages": chunks * devices,
            "device": device,
            "devices": devices,
        }

    def add_forward(self, result: Any) -> None:
        """Remember what the running pass returned; outputs that no backward pass took are forgotten."""
        if len(self._pending) >= _MAX_PENDING:
            self._pending.clear()
        if self.running is not None:
            self._pending[_tensor_id(result[0] if isinstance(result, tuple) else result)] = self.running

    def pop_forward(self, output: Any) -> Mapping[str, int] | None:
        """The forward pass that returned an output; None where it was not seen."""
        return self._pending.pop(_tensor_id(output), None)


def _tensor_id(output: Any) -> int:
    """The tensor itself, which stays the same object even when its memory is given back before the backward pass."""
    while isinstance(output, (list, tuple)) and output:
        output = output[0]
    return id(output)


PATCHES: Patches = {
    "megatron.core.pipeline_parallel.schedules": {"timing micro-batches of Megatron's pipelines": patch_schedules},
}
