"""Runs the command as if nobody stood between it and the terminal, and learns how it ended.

The command keeps our process group, terminal, standard streams and working directory. A signal that was sent to us
alone is passed on; one that the terminal sent has reached the command already and is not sent twice.
"""

from __future__ import annotations

import os
import signal
import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

_FORWARDED = (
    signal.SIGINT,
    signal.SIGTERM,
    signal.SIGHUP,
    signal.SIGQUIT,
    signal.SIGUSR1,
    signal.SIGUSR2,
)
_SENT_BY_A_PROCESS = 0  # SI_USER; the kernel's own, such as Ctrl-C at the terminal, are above


@dataclass(frozen=True, slots=True)
class Ending:
    """How a command ended: with an exit code, or by a signal."""

    code: int
    signal: int | None = None

    def __str__(self) -> str:
        return (
            f"was ended by {signal.Signals(self.signal).name}" if self.signal else f"ended with exit code {self.code}"
        )


def run(command: Sequence[str], executable: str, environment: Mapping[str, str]) -> Ending:
    """Run a command to its end; ``executable`` is the file that its first word names.

    Raises:
        OSError: It cannot be started.
    """
    waited_for = {*_FORWARDED, signal.SIGCHLD}
    before = signal.pthread_sigmask(signal.SIG_BLOCK, waited_for)
    try:
        # Between fork and exec the child only restores the mask that the command is to start with.
        child = subprocess.Popen(
            command,
            executable=executable,
            env=dict(environment),
            preexec_fn=lambda: signal.pthread_sigmask(signal.SIG_SETMASK, before),  # noqa: PLW1509 - no thread exists
        )
        code = _wait(child, waited_for)
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
    return Ending(code) if code >= 0 else Ending(128 - code, signal=-code)


def _wait(child: subprocess.Popen[bytes], signals: set[signal.Signals]) -> int:
    while True:
        code = child.poll()
        if code is not None:
            return code
        received = signal.sigwaitinfo(signals)
        if received.si_signo != signal.SIGCHLD and received.si_code <= _SENT_BY_A_PROCESS:
            os.kill(child.pid, received.si_signo)
