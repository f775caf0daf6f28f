"""Wrappers around what runs one pass of one micro-batch in Megatron-core's schedules.

The schedules receive before they call these functions and send afterwards, so that no waiting for another stage is
in a pass.
"""

from __future__ import annotations

import dataclasses
import functools
import sys
from collections import Counter
from typing import TYPE_CHECKING, Any

from perfscope.hooks.frameworks.arguments import parameter_names

if TYPE_CHECKING:
    from collections.abc import Callable
    from types import ModuleType

    from perfscope.hooks.capture import Capture
    from perfscope.hooks.timers.passes import Pass

_MOST_AWAITED = 4096


def patch_schedules(module: ModuleType, capture: Capture) -> None:
    """Time the passes of Megatron-core's schedules, which look these two functions up when they call them.

    ``backward_step`` is not told its micro-batch; what it is given is what a ``forward_step`` returned.
    """
    forward, backward = module.forward_step, module.backward_step
    places = _Places(module.parallel_state, parameter_names(forward))

    @functools.wraps(forward)
    def forward_step(*args: Any, **kwargs: Any) -> Any:
        token = capture.pass_begins(lambda: places.forward(args, kwargs)) if _training() else None
        try:
            result = forward(*args, **kwargs)
        finally:
            capture.pass_ends(token)
        if token is not None:
            capture.tell(lambda _: places.remember(result, token.which))
        return result

    @functools.wraps(backward)
    def backward_step(input_tensor: Any, output_tensor: Any, *args: Any, **kwargs: Any) -> Any:
        token = capture.pass_begins(lambda: places.backward(output_tensor)) if places.awaited else None
        try:
            return backward(input_tensor, output_tensor, *args, **kwargs)
        finally:
            capture.pass_ends(token)

    module.forward_step = forward_step  # type: ignore[attr-defined]
    module.backward_step = backward_step  # type: ignore[attr-defined]


class _Places:
    """Which micro-batch of which chunk a call of Megatron's functions works on.

    Attributes:
        awaited: The forward passes whose backward pass did not come yet, by the tensor that they returned.
    """

    def __init__(self, parallel_state: Any, names: tuple[str, ...]) -> None:
        self.awaited: dict[int, Pass] = {}
        self._state = parallel_state
        self._names = names
        self._counts: Counter[int] = Counter()

    def forward(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Pass | None:
        """Name a forward pass; its micro-batch is counted where this version does not tell. None without stages."""
        devices = int(self._state.get_pipeline_model_parallel_world_size())
        if devices == 1:
            return None
        given = {**dict(zip(self._names, args, strict=False)), **kwargs}
        if not self.awaited:
            self._counts.clear()
        chunk = given.get("vp_stage")
        if chunk is None:
            chunk = getattr(self._state, "get_virtual_pipeline_model_parallel_rank", lambda: None)() or 0
        told = given.get("current_microbatch")
        number = told if isinstance(told, int) else self._counts[chunk]
        self._counts[chunk] += 1
        device = int(self._state.get_pipeline_model_parallel_rank())
        chunks = self._state.get_virtual_pipeline_model_parallel_world_size() or 1
        return _pass("F", number, chunk * devices + device, chunks * devices, device, devices)

    def remember(self, result: Any, which: Pass) -> None:
        """Keep whose output it is; outputs that no backward pass took, as of an evaluation, are forgotten."""
        if len(self.awaited) >= _MOST_AWAITED:
            self.awaited.clear()
        self.awaited[_identity(result[0] if isinstance(result, tuple) else result)] = which

    def backward(self, output: Any) -> Pass | None:
        """Name the backward pass of an output; None where its forward pass was not seen."""
        found = self.awaited.pop(_identity(output), None)
        return None if found is None else dataclasses.replace(found, kind="B")


def _identity(output: Any) -> int:
    """The tensor itself, which stays the same object even when its memory is given back before the backward pass."""
    while isinstance(output, (list, tuple)) and output:
        output = output[0]
    return id(output)


def _pass(*fields: Any) -> Pass:
    """Name a pass; its module is loaded where a pass runs, not in a launcher that imports Megatron."""
    from perfscope.hooks.timers.passes import Pass

    return Pass(*fields)


def _training() -> bool:
    return bool(sys.modules["torch"].is_grad_enabled())


def patch_combined_schedules(module: ModuleType, capture: Capture) -> None:
    """Say that passes are not timed one by one where forward and backward are interleaved layer by layer."""
    for name in ("combined_1f1b_schedule_for_no_pipelining", "combined_1f1b_schedule_for_interleaved_pipelining"):
        original = getattr(module, name, None)  # older versions interleave nothing
        if original is not None:
            setattr(module, name, _saying_once(original, capture))


def _saying_once(original: Callable[..., Any], capture: Capture) -> Callable[..., Any]:
    said = False

    @functools.wraps(original)
    def combined(*args: Any, **kwargs: Any) -> Any:
        nonlocal said
        if not said:
            said = True
            capture.note("micro-batches are not timed: Megatron runs forward and backward passes interleaved by layers")
        return original(*args, **kwargs)

    return combined


PATCHES: dict[str, list[tuple[str, Callable[[ModuleType, Capture], None]]]] = {
    "megatron.core.pipeline_parallel.schedules": [
        ("timing micro-batches of Megatron's pipelines", patch_schedules),
        ("noticing Megatron's interleaved passes", patch_combined_schedules),
    ],
}
