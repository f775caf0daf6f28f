"""Why a training failed, from what it printed."""

from __future__ import annotations

import re
from pathlib import Path

_LAST_BYTES = 200_000
_LONGEST_REASON = 160
_OUT_OF_MEMORY = re.compile(
    rb"(OutOfMemoryError|CUDA out of memory|CUDA error: out of memory|DefaultCPUAllocator: can't allocate memory"
    rb"|std::bad_alloc|MemoryError)[^\n]*"
)
#: As torchrun and ``perfscope profile`` say it.
_KILLED = re.compile(rb"exitcode\s*: -9|exit code -9|SIGKILL")
#: What shells and ``perfscope profile`` end with where a command cannot be started.
_NOT_STARTED = (126, 127)
_MESSAGE = re.compile(rb"^perfscope: ([^\n]+)", re.MULTILINE)
#: An exception as Python prints it, behind the name of a rank that torchrun may put before it.
_ERROR = re.compile(
    rb"^(?:\[[^\]\n]*\]:\s?)?((?:[A-Za-z_][\w.]*)(?:Error|Exception|Interrupt)\b:?[^\n]*)", re.MULTILINE
)
#: What a launcher raises because a rank failed.
_FOLLOWS = (b"ChildFailedError", b"CalledProcessError", b"SignalException", b"KeyboardInterrupt")


def explain_failure(log: Path, exit_code: int | None, seconds: float) -> str:
    """The reason in a few words.

    Args:
        log: What the processes printed.
        exit_code: Of the command; None where it was ended because it took too long.
        seconds: How long it was given.
    """
    if exit_code is None:
        return f"failed: it did not end within {seconds:g} s"
    content = log.read_bytes()[-_LAST_BYTES:] if log.exists() else b""
    if memory := _OUT_OF_MEMORY.search(content):
        return f"out of memory: {_shorten(memory.group())}"
    if _KILLED.search(content):
        return "failed: killed by SIGKILL, as a host kills what it has no memory for"
    if exit_code in _NOT_STARTED and (messages := _MESSAGE.findall(content)):
        return f"failed: {_shorten(messages[-1])}"
    errors = [error for error in _ERROR.findall(content) if not any(name in error for name in _FOLLOWS)]
    return f"failed: {_shorten(errors[0])}" if errors else f"failed: exit code {exit_code}"


def _shorten(line: bytes) -> str:
    text = " ".join(line.decode(errors="replace").split())
    return text if len(text) <= _LONGEST_REASON else f"{text[:_LONGEST_REASON]}..."
