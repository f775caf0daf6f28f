"""Functions that a pickle would call and that no checkpoint needs: the sign of a malicious file."""

from __future__ import annotations

from collections.abc import Iterable

_MODULES = frozenset({
    "os", "posix", "nt", "posixpath", "subprocess", "sys", "shutil", "socket", "pty", "runpy", "importlib", "ctypes",
    "webbrowser", "code", "codeop", "pdb", "bdb", "timeit", "asyncio", "multiprocessing", "threading", "signal",
    "urllib", "http", "requests", "httpx", "ftplib", "smtplib", "pickle", "_pickle", "marshal", "shelve", "tempfile",
    "pydoc", "cProfile", "profile", "trace", "venv", "ensurepip", "pip", "commands", "platform", "operator",
    "aiohttp", "paramiko", "xmlrpc", "telnetlib", "doctest", "idlelib", "distutils", "setuptools", "nturl2path",
})  # fmt: skip
_BUILTINS = frozenset({
    "eval", "exec", "execfile", "compile", "open", "input", "__import__", "setattr", "delattr", "globals", "locals",
    "vars", "breakpoint", "exit", "quit", "apply", "file", "map", "filter", "help",
})  # fmt: skip
# A dotted name can reach a module through the imports of another one: torch.serialization.os.system.
_INNER = frozenset({"os", "sys", "subprocess", "builtins", "importlib", "shutil", "socket", "ctypes", "pickle"})
_TORCH = ("torch.hub.", "torch.load", "torch.serialization.load", "torch.utils.cpp_extension", "torch.package.",
          "torch.jit.load", "torch._dynamo", "torch._inductor", "torch.classes.", "torch.ops.load",
          "torch.distributed.rpc", "torch.multiprocessing", "torch.utils.collect_env", "torch.utils.bottleneck",
          "numpy.load", "numpy.fromfile", "numpy.f2py", "numpy.distutils", "numpy.testing", "joblib.")  # fmt: skip


def find_dangerous_calls(names: Iterable[str]) -> tuple[str, ...]:
    """The dangerous functions among those that a pickle names."""
    return tuple(sorted({name or "a function with a computed name" for name in names if _is_dangerous(name)}))


def _is_dangerous(name: str) -> bool:
    if not name:
        return True
    module, _, function = name.partition(".")
    if module in ("builtins", "__builtin__", "__builtins__"):
        return function.split(".")[0] in _BUILTINS
    return module in _MODULES or name.startswith(_TORCH) or not _INNER.isdisjoint(function.split("."))
