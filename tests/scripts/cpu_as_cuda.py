"""Lets libraries that ask for CUDA by name run on the CPU: what they put on a device of CUDA stays in memory."""

import contextlib

import torch
from torch.overrides import TorchFunctionMode

CPU = torch.device("cpu")


class OnCpu(TorchFunctionMode):
    """Replaces the device of every call of torch."""

    def __torch_function__(self, func, types, args=(), kwargs=None):
        kwargs = dict(kwargs or {})
        if torch.device(kwargs.get("device") or "cpu").type == "cuda":
            kwargs["device"] = CPU
        if func is torch.Tensor.cuda:
            return args[0]
        answer = func(*args, **kwargs)
        asks_type = func is torch.Tensor.type and len(args) == 1
        return answer.replace("torch.", "torch.cuda.") if asks_type else answer


def install() -> None:
    """Do so from now on."""
    OnCpu().__enter__()
    torch.cuda.current_device = lambda: CPU
    torch.cuda.device_count = lambda: 1
    torch.cuda.synchronize = lambda *_: None
    torch.cuda._lazy_init = lambda: None
    torch.cuda._lazy_call = lambda call, **_: call()
    torch.cuda.default_generators = {CPU: torch.default_generator}
    for owner in (torch.cuda, torch.cuda.random):
        owner.get_rng_state = lambda *_, **__: torch.get_rng_state()
        owner.set_rng_state = lambda state, *_, **__: torch.set_rng_state(state)
        owner.manual_seed = torch.default_generator.manual_seed
    torch.cuda.stream = lambda _: contextlib.nullcontext()
