"""Patches modules as they are imported, and builds this process's capture when training first calls a patch.

A launcher or a data-loader worker imports torch too and never trains: until then nothing but this file and the patches
is loaded.
"""

from __future__ import annotations

import os
from importlib import import_module

from perfscope.hooks.guard import write_message

TYPE_CHECKING = False
if TYPE_CHECKING:
    from types import ModuleType
    from typing import Any

    from perfscope.hooks.capture import Capture
    from perfscope.hooks.config import Config

_capture: Capture | None = None
_failed = False


class LateCapture:
    """Stands for the capture in the patches; the first use builds it from the files of ``perfscope profile``."""

    def __init__(self, boot_dir: str) -> None:
        self._boot_dir = boot_dir

    def __getattr__(self, name: str) -> Any:
        global _failed  # noqa: PLW0603 - it is said once, whichever patch is first
        if _capture is None and not _failed:
            try:
                begin(_read_config(self._boot_dir))
            except Exception as error:  # noqa: BLE001 - the hooks' outer edge: training goes on without us
                _failed = True
                write_message(f"nothing is captured in process {os.getpid()}: {error!r}")
        return _nothing if _capture is None else getattr(_capture, name)


def _nothing(*_args: object, **_kwargs: object) -> None:
    """What a patch calls where there is no capture."""


def current() -> Capture | None:
    """This process's capture, where there is one."""
    return _capture


def begin(config: Config) -> Capture:
    """Make this process's capture."""
    global _capture  # noqa: PLW0603 - one process has one profiler, so it has one capture
    if _capture is None:
        from perfscope.hooks.capture import Capture

        _capture = Capture(config)
    return _capture


def patch(name: str, module: ModuleType, boot_dir: str) -> None:
    """Patch one watched module that was just executed, below ``perfscope profile``."""
    try:
        patch_module(name, module, LateCapture(boot_dir))
    except Exception as error:  # noqa: BLE001 - the hooks' outer edge: training goes on without us
        write_message(f"{name} is not hooked: {error!r}")


def patch_module(name: str, module: ModuleType, capture: Any) -> None:
    """Put our wrappers around the functions of one watched module; a function that moved is said and left alone."""
    from perfscope.hooks.frameworks import saves as save_hooks

    for feature, apply in [*_patches(name), *save_hooks.PATCHES.get(name, [])]:
        try:
            apply(module, capture)
        except AttributeError as error:
            write_message(f"{feature} is off: this version of {name} differs ({error})")


#: The modules of ours that patch a framework's, by the beginning of its name; each is loaded with that framework.
_PATCHERS = {
    "deepspeed.": ("deepspeed", "micro_batches"),
    "megatron.core.pipeline_parallel.": ("megatron_passes",),
    "megatron.": ("megatron",),
    "torch.distributed.pipelining.": ("micro_batches", "meshes"),
    "torch.distributed.device_mesh": ("meshes",),
    "torch.distributed.rpc": ("rpc",),
    "torch.distributed.optim.": ("rpc",),
    "torch.distributed.tensor.": ("meshes",),
    "torch.distributed.fsdp.": ("wrappers",),
    "torch.distributed._composable.": ("wrappers",),
    "torch.nn.parallel.": ("wrappers",),
    "torchtitan.": ("torchtitan",),
    "torch": ("torch",),
}


def _patches(name: str) -> list[tuple[str, Any]]:
    patchers = next(found for beginning, found in _PATCHERS.items() if name.startswith(beginning))
    modules = [import_module(f"perfscope.hooks.frameworks.{patcher}") for patcher in patchers]
    return [patch for module in modules for patch in module.PATCHES.get(name, [])]


def _read_config(boot_dir: str) -> Config:
    from perfscope.hooks.config import CONFIG_FILE, ENVIRONMENT_VARIABLE, Config

    path = os.path.join(boot_dir, CONFIG_FILE)
    if os.path.exists(path):
        with open(path, encoding="utf-8") as file:
            return Config.from_json(file.read())
    return Config.from_environment(os.environ[ENVIRONMENT_VARIABLE])
