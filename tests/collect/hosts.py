"""Several hosts on one machine: namespaces of network, mounts and host name, joined by a bridge, each with an sshd.

Every host has its own name, its own address and its own file system in the working folder; programs and the scripts to
train are the same files on all of them, as an installed environment is. Needs root and Debian's iproute2,
openssh-server, openssh-client and pdsh.
"""

from __future__ import annotations

import os
import shlex
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path

from tests.conftest import ROOT, Ended, environment

NEEDED = ("ip", "sshd", "ssh", "ssh-keygen", "pdsh", "unshare", "nsenter", "mount")
#: DeepSpeed's first run on a machine compiles for minutes.
_LONGEST_S = 420
_PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
#: Without the name of an interface gloo takes the address of the host's name, which some machines give as 127.0.0.1.
_VARIABLES = {"GLOO_SOCKET_IFNAME": "eth0", "OMP_NUM_THREADS": "1"}


@dataclass
class Host:
    """One host.

    Attributes:
        name: Its host name, which the others know.
        address: Its address.
        work: Its working folder, which no other host sees.
        pid: A process in its namespaces.
    """

    name: str
    address: str
    work: Path
    pid: int

    def start(self, *command: str | Path, **variables: str) -> subprocess.Popen[str]:
        """Start a command in the working folder."""
        words = shlex.join(str(word) for word in command)
        return subprocess.Popen(
            [
                "nsenter",
                "--target",
                str(self.pid),
                "--net",
                "--uts",
                "--mount",
                "--",
                "sh",
                "-c",
                f"cd {self.work} && exec {words}",
            ],
            env={**environment(), **_VARIABLES, **variables},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            start_new_session=True,
        )

    def run(self, *command: str | Path, **variables: str) -> Ended:
        """Run a command to its end."""
        return finish(self.start(*command, **variables))

    def perfscope(self, *words: str | Path, **variables: str) -> Ended:
        """Run the command line of this tree."""
        return self.run(sys.executable, "-m", "perfscope", *words, **variables)


def finish(process: subprocess.Popen[str]) -> Ended:
    """Wait for a command that was started."""
    try:
        stdout, stderr = process.communicate(timeout=_LONGEST_S)
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, signal.SIGKILL)
        raise
    return Ended(process.returncode, stdout, stderr)


@contextmanager
def hosts(folder: Path, count: int) -> Iterator[list[Host]]:
    """Hosts node1, node2, ... that reach each other over ssh without a password."""
    missing = [program for program in NEEDED if shutil.which(program, path=_PATH) is None]
    assert not missing, f"{', '.join(missing)} missing: apt-get install iproute2 openssh-server openssh-client pdsh"
    assert os.geteuid() == 0, "network namespaces need root"
    with ExitStack() as stack:
        yield list(_Network(folder, count, stack).hosts)


@dataclass
class _Network:
    """The bridge and what hangs on it."""

    folder: Path
    count: int
    stack: ExitStack
    hosts: list[Host] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.prefix = f"ps{os.getpid()}"
        self.work = self.folder / "work"
        self.work.mkdir()
        self._write_configuration()
        self._add_namespace("sw")
        self._ip("sw", "link add br0 type bridge")
        self._ip("sw", "link set br0 up")
        for number in range(1, self.count + 1):
            self.hosts.append(self._add_host(number))
        for host in self.hosts:
            self._wait_for(host)

    def _write_configuration(self) -> None:
        (self.folder / "hosts").write_text(
            "127.0.0.1 localhost\n" + "".join(f"10.99.0.{n} node{n}\n" for n in range(1, self.count + 1))
        )
        for name in ("host_key", "id"):
            _do("ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", str(self.folder / name))
        variables = {**_VARIABLES, "TORCH_EXTENSIONS_DIR": environment()["TORCH_EXTENSIONS_DIR"]}
        (self.folder / "sshd_config").write_text(
            f"HostKey {self.folder}/host_key\nAuthorizedKeysFile {self.folder}/id.pub\nPidFile none\nStrictModes no\n"
            f"UsePAM no\nPermitRootLogin yes\nMaxStartups 50\n"
            f"SetEnv {' '.join(f'{name}={value}' for name, value in variables.items())}\n"
        )
        (self.folder / "ssh_config").write_text(
            f"Host *\n  IdentityFile {self.folder}/id\n  StrictHostKeyChecking no\n  UserKnownHostsFile /dev/null\n"
            "  LogLevel ERROR\n"
        )

    def _add_host(self, number: int) -> Host:
        name = f"{self.prefix}-{number}"
        self._add_namespace(str(number))
        self._ip("sw", f"link add p{number} type veth peer name eth0 netns {name}")
        self._ip("sw", f"link set p{number} master br0 up")
        self._ip(str(number), f"addr add 10.99.0.{number}/24 dev eth0")
        self._ip(str(number), "link set eth0 up")
        self._ip(str(number), "link set lo up")
        # What is mounted here is seen by this host alone and goes with its last process.
        steps = [
            f"hostname node{number}",
            f"mount -t tmpfs tmpfs {self.work}",
            "mount -t tmpfs tmpfs /run",
            "mkdir /run/sshd",
            f"mount --bind {self.folder}/hosts /etc/hosts",
            f"mount --bind {self.folder}/ssh_config /etc/ssh/ssh_config",
            f"exec {shutil.which('sshd', path=_PATH)} -D -e -f {self.folder}/sshd_config",
        ]
        log = self.stack.enter_context((self.folder / f"sshd{number}.log").open("wb"))
        apart = ["ip", "netns", "exec", name, "unshare", "--uts", "--mount", "--propagation", "private"]
        daemon = subprocess.Popen(
            [*apart, "sh", "-c", " && ".join(steps)],
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            start_new_session=True,
        )
        self.stack.callback(_end, daemon)
        return Host(f"node{number}", f"10.99.0.{number}", self.work, daemon.pid)

    def _wait_for(self, host: Host) -> None:
        deadline = time.monotonic() + 20
        while True:
            with suppress(subprocess.CalledProcessError):
                _do("nsenter", "--target", str(host.pid), "--net", "--uts", "--mount", "--", "ssh", host.name, "true")
                return
            log = (self.folder / f"sshd{host.name.removeprefix('node')}.log").read_text()
            assert time.monotonic() < deadline, f"{host.name} does not answer: {log}"
            time.sleep(0.1)

    def _add_namespace(self, name: str) -> None:
        _do("ip", "netns", "add", f"{self.prefix}-{name}")
        self.stack.callback(self._remove_namespace, f"{self.prefix}-{name}")

    def _remove_namespace(self, name: str) -> None:
        left = subprocess.run(["ip", "netns", "pids", name], capture_output=True, text=True, check=False)
        for pid in left.stdout.split():
            with suppress(ProcessLookupError):
                os.kill(int(pid), signal.SIGKILL)
        subprocess.run(["ip", "netns", "delete", name], check=False)

    def _ip(self, namespace: str, words: str) -> None:
        _do("ip", "-n", f"{self.prefix}-{namespace}", *words.split())


def _do(*command: str) -> None:
    subprocess.run(command, check=True, capture_output=True, env={**os.environ, "PATH": _PATH})


def _end(daemon: subprocess.Popen[bytes]) -> None:
    with suppress(ProcessLookupError):
        os.killpg(daemon.pid, signal.SIGKILL)
    daemon.wait(timeout=10)


def scripts() -> Path:
    """The scripts to train, which every host sees."""
    return ROOT / "tests" / "scripts"


def write_on(host: Host, name: str, lines: Sequence[str]) -> None:
    """Write a file into a host's working folder."""
    ended = host.run("sh", "-c", f"printf '%s\\n' {shlex.join(lines)} > {shlex.quote(name)}")
    assert ended.code == 0, ended.stderr
