"""Hooks around what runs one pass of one micro-batch in Megatron-core's schedules.

The schedules receive before they call these functions and send afterwards, so that no waiting for another stage is
in a pass.
"""

from __future__ import annotations

import functools
from collections import Counter
from typing import TYPE_CHECKING, Any

from perfscope.hooks.frameworks.wrapping import argument, parameter_names, whole_number
from perfscope.hooks.introspection import is_grad_enabled
from perfscope.hooks.timers.passes import UNTIMED

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from typing import TypeAlias

    from perfscope.hooks.capture import Capture
    from perfscope.hooks.frameworks.wrapping import Patches
    from perfscope.hooks.timers.passes import TimedPass

    #: A timed pass that runs, and its position.
    _Begun: TypeAlias = tuple[TimedPass, Mapping[str, int]]

_MAX_PENDING = 4096


def patch_schedules(module: Any, capture: Capture) -> None:
    """Time the passes of Megatron-core's schedules, which look these two functions up when they call them.

    ``backward_step`` does not get its micro-batch as an argument: it gets what a ``forward_step`` returned.
    """
    original_forward, original_backward = module.forward_step, module.backward_step
    passes = _Passes(module.parallel_state, parameter_names(original_forward))

    def begin(kind: str, position: Mapping[str, int] | None) -> _Begun | None:
        timed_pass = None if position is None else capture.on_pass_begin(kind, **position)
        return None if position is None or timed_pass is None else (timed_pass, position)

    def begin_forward(args: tuple[object, ...], kwargs: dict[str, object]) -> _Begun | None:
        return begin("F", passes.position_of_forward(args, kwargs) if is_grad_enabled() else None)

    def begin_backward(args: tuple[object, ...], kwargs: dict[str, object]) -> _Begun | None:
        return begin("B", passes.pop_forward(argument(original_backward, "output_tensor", args, kwargs)))

    def end_forward(begun: _Begun, result: Any) -> None:
        capture.on_pass_end(begun[0])
        passes.add_forward(result, begun[1])

    def end_backward(begun: _Begun, _result: Any) -> None:
        capture.on_pass_end(begun[0])

    module.forward_step = _timed(original_forward, capture, begin_forward, end_forward, is_forward=True)
    module.backward_step = _timed(original_backward, capture, begin_backward, end_backward, is_forward=False)


def _timed(
    original: Callable[..., Any],
    capture: Capture,
    begin: Callable[[tuple[object, ...], dict[str, object]], _Begun | None],
    end: Callable[[_Begun, Any], None],
    *,
    is_forward: bool,
) -> Callable[..., Any]:
    """A function with a pass around it; written by hand, because a step calls it for each micro-batch."""

    @functools.wraps(original)
    def call(*args: object, **kwargs: object) -> Any:
        if UNTIMED.rest:
            UNTIMED.forwards += is_forward
            return original(*args, **kwargs)
        begun = capture.run_guarded(begin, args, kwargs)
        if begun is None:
            return original(*args, **kwargs)
        try:
            result = original(*args, **kwargs)
        except BaseException:
            capture.on_pass_end(begun[0])
            raise
        capture.run_guarded(end, begun, result)
        return result

    return call


class _Passes:
    """Which micro-batch of which chunk a call of Megatron's functions works on."""

    def __init__(self, parallel_state: Any, names: tuple[str, ...]) -> None:
        self._state = parallel_state
        self._names = names
        self._counts: Counter[int] = Counter()
        #: The forward passes whose backward pass did not come yet, by the tensor that they returned.
        self._pending: dict[int, Mapping[str, int]] = {}

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

    def add_forward(self, result: Any, position: Mapping[str, int]) -> None:
        """Remember whose output it is; outputs that no backward pass took, as of an evaluation, are forgotten."""
        if len(self._pending) >= _MAX_PENDING:
            self._pending.clear()
        self._pending[_tensor_id(result[0] if isinstance(result, tuple) else result)] = position

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
