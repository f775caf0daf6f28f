"""Runs the command as if it had been started directly, and reports how it ended.

The command keeps our process group, terminal, standard streams and working directory. A signal that was sent to this
process alone is passed on; a signal of the terminal has reached the command already and is not sent twice.
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
_SENT_BY_PROCESS = 0  # SI_USER; signals of the kernel, such as Ctrl-C at the terminal, have larger codes


@dataclass(frozen=True, slots=True)
class Ending:
    """How a command ended: with an exit code, or by a signal.

    Attributes:
        code: Its exit code, as a shell reports it.
        signal: The signal that ended it; absent where none did.
    """

    code: int
    signal: int | None = None

    def __str__(self) -> str:
        if self.signal:
            return f"was ended by {signal.Signals(self.signal).name}"
        return f"ended with exit code {self.code}"


def run(command: Sequence[str], executable: str, environment: Mapping[str, str]) -> Ending:
    """Run a command and wait for its end; ``executable`` is the file that its first word names.

    Raises:
        OSError: It cannot be started.
    """
    awaited = {*_FORWARDED, signal.SIGCHLD}
    original_mask = signal.pthread_sigmask(signal.SIG_BLOCK, awaited)
    try:
        # Between fork and exec the child only restores the signal mask that the command is to start with.
        child = subprocess.Popen(
            command,
            executable=executable,
            env=dict(environment),
            preexec_fn=lambda: signal.pthread_sigmask(signal.SIG_SETMASK, original_mask),  # noqa: PLW1509 - no thread exists
        )
        code = _wait(child, awaited)
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, original_mask)
    return Ending(code) if code >= 0 else Ending(128 - code, signal=-code)


def _wait(child: subprocess.Popen[bytes], signals: set[signal.Signals]) -> int:
    while True:
        code = child.poll()
        if code is not None:
            return code
        received = signal.sigwaitinfo(signals)
        if received.si_signo != signal.SIGCHLD and received.si_code <= _SENT_BY_PROCESS:
            os.kill(child.pid, received.si_signo)
