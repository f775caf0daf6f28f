"""Makes one function of perfscope's hooks after the other fail, each in a training of its own.

The first training is only watched: what it calls is what can fail. Every later one begins with a new capture in which
one of those functions raises. Not broken are what catches such failures (the guard, the methods that guard themselves,
and the stand-in that builds the capture), the numbers that the guard reads, the wrappers that make the script's own
calls, and the one question that torch.compile reads in them.
"""

import functools
import sys
import types
from pathlib import Path
from typing import Any

HOOKS = str(Path(sys.modules["perfscope.hooks"].__file__ or "").resolve().parent)
CATCHES = ("guard", "boot", "imports")
NUMBERS = [f"Capture.{name}" for name in ("dead", "hook_ns", "steps")]
#: What guards itself: all that it calls is broken.
GUARDED = [
    f"Capture.on_{name}"
    for name in ("batch_loaded", "forward", "model_call", "gradients_cleared", "step_begin", "optimizer_step",
                 "scaler_update", "step_end")
]  # fmt: skip
IN_THE_WRAPPERS = ("_is_compiling",)

called: set[types.CodeType] = set()
restore: list[tuple[object, str, object]] = []
remaining: list[tuple[str, object, str]] = []


def watch(frame: types.FrameType, event: str, _argument: object) -> None:
    if event == "call" and frame.f_code.co_filename.startswith(HOOKS):
        called.add(frame.f_code)


def code_of(member: object) -> types.CodeType | None:
    if isinstance(member, property):
        member = member.fget
    if isinstance(member, (staticmethod, classmethod)):
        member = member.__func__
    while hasattr(member, "__wrapped__"):
        member = member.__wrapped__
    return getattr(member, "__code__", None)


def functions() -> list[tuple[str, object, str]]:
    """Every function of the hooks that the watched training called: its name, its owner and its name there."""
    found = []
    for name, module in sorted(sys.modules.items()):
        if not name.startswith("perfscope.hooks.") or name.rpartition(".")[2] in CATCHES:
            continue
        owners: list[Any] = [module, *(member for member in vars(module).values() if isinstance(member, type))]
        for owner in owners:
            if getattr(owner, "__module__", name) != name or getattr(owner, "__name__", "") == "LateCapture":
                continue
            for attribute, member in list(vars(owner).items()):
                code = code_of(member)
                if attribute in IN_THE_WRAPPERS or f"{owner.__name__}.{attribute}" in (*NUMBERS, *GUARDED):
                    continue
                if code in called and (owner is not module or getattr(member, "__module__", None) == name):
                    found.append((f"{owner.__name__}.{attribute}", owner, attribute))
    return found


def broken(member: object) -> object:
    def fault(*_args: object, **_kwargs: object) -> None:
        raise RuntimeError("injected")

    if isinstance(member, property):
        return property(fault)
    if isinstance(member, (staticmethod, classmethod)):
        return staticmethod(fault)
    if hasattr(member, "__wrapped__"):
        from perfscope.hooks.guard import hook_entry

        fault = functools.wraps(member.__wrapped__)(fault)
        return hook_entry(fault)
    return fault


def next_fault() -> bool:
    """End the last training's capture, and break the next function; False where none is left."""
    from perfscope.hooks import start

    sys.setprofile(None)
    if start.PROCESS.capture is not None:
        start.PROCESS.capture.finish()
    while restore:
        setattr(*restore.pop())
    import torch

    if torch.autograd._profiler_enabled():
        sys.stderr.write("A PROFILER WAS LEFT RUNNING\n")
    if called:
        remaining.extend(functions())
        called.clear()
    start.PROCESS.capture, start.PROCESS._has_failed = None, False
    if not remaining:
        return False
    name, owner, attribute = remaining.pop()
    restore.append((owner, attribute, vars(owner)[attribute]))
    setattr(owner, attribute, broken(vars(owner)[attribute]))
    sys.stderr.write(f"broken: {name}\n")
    return True


sys.setprofile(watch)
