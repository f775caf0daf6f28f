"""Capture inside a training job; it imports the standard library, and uses the torch that the job itself loads.

``perfscope profile`` captures an unmodified script. A script can do the same itself::

    import perfscope.hooks

    perfscope.hooks.attach("runs/mine", steps="10-12")
"""

from __future__ import annotations

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any


def attach(
    run_dir: str,
    *,
    steps: str | None = None,
    ranks: str | None = None,
    window: str = "both",
    shapes: bool = False,
    stack: bool = False,
    memory: bool = False,
    on_oom: bool = False,
    modules: bool = False,
    nvml_hz: float = 5.0,
    step_optimizer: int | str | None = None,
) -> None:
    """Capture this process as ``perfscope profile`` would; a second call, or a call under that command, has no effect.

    Call it before the model and the optimizer are built. Every rank names the same folder.

    Args:
        run_dir: The run's folder; created where it does not exist.
        steps: Training steps to profile, such as ``"2-4,7-9"``; step 10 where it is None.
        ranks: Ranks to profile, such as ``"0,4-6"``; all ranks where it is None.
        window: What is recorded of them on a GPU: ``operators``; ``light``, which is kernels and their launches alone;
            or ``both``, a light window after each window with operators.
        shapes: Record the operators' input shapes.
        stack: Record Python stacks.
        memory: Record allocations, and the history of the GPU's allocator.
        on_oom: Record that history from the first step on, and write it when memory runs out.
        modules: Mark every forward of a module with its name.
        nvml_hz: Samples per second of power, utilisation, memory and so on; 0 disables sampling.
        step_optimizer: Which of several optimizers ends a training step: ``"every"``, or its number in the order of
            their first steps, from 1. The rhythm of their steps decides where it is None.

    Raises:
        ValueError: ``steps``, ``ranks``, ``window`` or ``step_optimizer`` cannot be read.
        OSError: The folder cannot be created.
    """
    options: dict[str, Any] = dict(locals())
    # Imported here, because every process below `perfscope profile` imports this package, and most of them never train.
    from perfscope.hooks.reach.attach import attach_process

    attach_process(**options)
