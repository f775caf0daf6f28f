"""Runs the command as if it had been started directly, and reports how it ended.

The command keeps our process group, terminal, standard streams and working directory. A signal that was sent to this
process alone is passed on. One of the terminal, or to the whole group, has reached the command already. A witness tells
them apart: a process of the group that gets what the group gets.
"""

from __future__ import annotations

import contextlib
import errno
import os
import signal
import socket
import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import NoReturn

from perfscope.hooks.messages import write_message

#: Signals that stay this process's own: of its children, of its own faults, and of its use of the terminal.
_NOT_FORWARDED = {
    signal.SIGCHLD, signal.SIGTTIN, signal.SIGTTOU, signal.SIGSEGV, signal.SIGBUS, signal.SIGFPE, signal.SIGILL,
    signal.SIGTRAP, signal.SIGSYS,
}  # fmt: skip
_FORWARDED = signal.valid_signals() - {signal.SIGKILL, signal.SIGSTOP} - _NOT_FORWARDED
_SENT_BY_PROCESS = 0  # SI_USER; signals of the kernel, such as Ctrl-C at the terminal, have larger codes
#: A timer that was set before this process began is meant for the command.
_OF_TIMERS = {signal.SIGALRM, signal.SIGVTALRM, signal.SIGPROF}
#: It answers at once, unless somebody stopped it.
_LONGEST_ANSWER_S = 1.0
_SHELL = "/bin/sh"
_LOOKED_AT_BYTES = 128
#: What keeps this process from having a child; the command can still take its place.
_NO_CHILD = (errno.EAGAIN, errno.ENOMEM, errno.EMFILE, errno.ENFILE)


@dataclass(frozen=True, slots=True)
class Ending:
    """How a command ended: its exit code, as a shell reports it, and the signal that ended it, if one did."""

    code: int
    signal: int | None = None

    def __str__(self) -> str:
        if self.signal:
            return f"was ended by {_signal_name(self.signal)}"
        return f"ended with exit code {self.code}"


def _signal_name(number: int) -> str:
    """The name of a signal; Python has names for two of the real-time ones."""
    if number in set(signal.Signals):
        return signal.Signals(number).name
    return f"SIGRTMIN+{number - signal.SIGRTMIN}" if number > signal.SIGRTMIN else f"signal {number}"


def run(command: Sequence[str], executable: str, environment: Mapping[str, str]) -> Ending:
    """Run a command and wait for its end; ``executable`` is the file that its first word names.

    Where this process can have no child, the command takes its place. Raises OSError: it cannot be started.
    """
    awaited = {*_FORWARDED, signal.SIGCHLD}
    original_mask = signal.pthread_sigmask(signal.SIG_BLOCK, awaited)
    # Where the end of children is ignored, their exit codes are lost.
    original_action = signal.signal(signal.SIGCHLD, signal.SIG_DFL)

    def restore_signals() -> None:
        signal.signal(signal.SIGCHLD, original_action)
        signal.pthread_sigmask(signal.SIG_SETMASK, original_mask)

    try:
        child = subprocess.Popen(
            command,
            executable=executable,
            env=dict(environment),
            close_fds=False,  # what the shell opened for the command: <(...), 3>log
            preexec_fn=restore_signals,  # noqa: PLW1509 - no thread exists between fork and exec
        )
        code = _wait(child, awaited)
    except OSError as error:
        if error.errno not in _NO_CHILD:
            raise
        write_message(f"the command runs without a summary: no child process can be started: {error.strerror}")
        restore_signals()
        replace_process(command, executable, environment)
    finally:
        restore_signals()
    return Ending(code) if code >= 0 else Ending(128 - code, signal=-code)


def replace_process(command: Sequence[str], executable: str, environment: Mapping[str, str]) -> NoReturn:
    """Let a command take the place of this process. Raises OSError: it cannot be started."""
    for ignored_by_python in (signal.SIGPIPE, signal.SIGXFSZ):
        signal.signal(ignored_by_python, signal.SIG_DFL)
    os.execve(executable, list(command), dict(environment))


def words_of_script(executable: str, command: Sequence[str]) -> list[str] | None:
    """The words that start a file which the system cannot: a script without ``#!``, which every shell runs by sh."""
    with contextlib.suppress(OSError), open(executable, "rb") as file:
        if b"\0" not in file.read(_LOOKED_AT_BYTES):
            return [_SHELL, executable, *command[1:]]
    return None


class Witness:
    """A process of this group that keeps the signals it gets, all of which are blocked.

    It is younger than the command: a signal that came before the command was there is still passed on.
    """

    def __init__(self) -> None:
        self._socket, asked = socket.socketpair()
        self._pid = os.fork()
        if not self._pid:
            self._socket.close()
            while number := asked.recv(1):
                asked.send(bytes([signal.sigtimedwait({number[0]}, 0) is not None]))
            os._exit(0)
        asked.close()
        self._socket.settimeout(_LONGEST_ANSWER_S)

    def has_seen(self, number: int) -> bool:
        """Whether it got a signal that this process got, too: the youngest of a group gets it first."""
        with contextlib.suppress(OSError):
            self._socket.send(bytes([number]))
            return self._socket.recv(1) == bytes([True])
        self._socket.close()  # it was stopped or killed
        return False

    def end(self) -> None:
        """Let nothing be left of it."""
        os.kill(self._pid, signal.SIGKILL)
        os.waitpid(self._pid, 0)
        self._socket.close()


def _wait(child: subprocess.Popen[bytes], signals: set[signal.Signals]) -> int:
    witness = None
    with contextlib.suppress(OSError):  # no process can be started any more
        witness = Witness()
    while True:
        code = child.poll()
        if code is not None:
            break
        received = signal.sigwaitinfo(signals)
        if received.si_signo == signal.SIGCHLD:
            continue
        is_shared = witness is not None and witness.has_seen(received.si_signo)
        if (received.si_code <= _SENT_BY_PROCESS and not is_shared) or received.si_signo in _OF_TIMERS:
            os.kill(child.pid, received.si_signo)
        if received.si_signo == signal.SIGTSTP:
            os.kill(os.getpid(), signal.SIGSTOP)  # the shell sees this process stop, as it would see the command
    while signal.sigtimedwait(signals, 0):  # what came with the command's end was meant for it
        pass
    if witness is not None:
        witness.end()
    return code
