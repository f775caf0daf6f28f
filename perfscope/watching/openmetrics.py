"""The state of a running job in the text format of OpenMetrics, for Prometheus: a file, or a port of this host."""

from __future__ import annotations

import threading
from collections.abc import Iterable
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

from perfscope.constants import NS_PER_S
from perfscope.errors import SourceError, UsageError
from perfscope.files import replace_file
from perfscope.watching.job import WatchedJob

CONTENT_TYPE = "application/openmetrics-text; version=1.0.0; charset=utf-8"
_LOOPBACK = "127.0.0.1"
_LARGEST_PORT = 65535
_MW_PER_W = 1000
_PERCENT = 100
_COUNTER = "perfscope_steps"
_Sample = tuple[dict[str, str], float | int | None]


def to_openmetrics(job: WatchedJob) -> str:
    """Write the metrics; what is not known is left out."""
    ranks = [(rank, {"rank": str(number), "host": rank.record.host}) for number, rank in sorted(job.ranks.items())]
    ages = [(at, _seconds(rank.age_ns(job.wall_ns))) for rank, at in ranks if not rank.has_ended]
    gpus = [
        (gpu.values, {"host": gpu.host, "gpu": str(gpu.values.index), "uuid": gpu.values.uuid, "name": gpu.values.name})
        for gpu in job.gpus
    ]
    metrics: list[tuple[str, str, str, list[_Sample]]] = [
        ("steps", "", "Completed training steps.", [(at, rank.step) for rank, at in ranks]),
        ("step_seconds", "seconds", "Step time of the job.", [({}, _seconds(job.step_ns()))]),
        ("samples_per_second", "", "Samples of all ranks.", [({}, job.per_second("samples"))]),
        ("tokens_per_second", "", "Tokens of all ranks.", [({}, job.per_second("tokens"))]),
        ("mfu_ratio", "ratio", "Model FLOPs utilisation.", [({}, job.mfu)]),
        ("step_age_seconds", "seconds", "Time since the last completed step.", ages),
        ("rank_running", "", "1 while it runs.", [(at, int(not rank.has_ended)) for rank, at in ranks]),
        ("rank_stalled", "", "1 while stalled.", [(at, int(job.is_stalled(rank))) for rank, at in ranks]),
        (
            "gpu_utilization_ratio",
            "ratio",
            "Share of time with a kernel.",
            [(at, _over(gpu.gpu_util_percent, _PERCENT)) for gpu, at in gpus],
        ),
        ("gpu_memory_used_bytes", "bytes", "Memory in use.", [(at, gpu.memory_used_bytes) for gpu, at in gpus]),
        ("gpu_power_watts", "watts", "Power.", [(at, _over(gpu.power_mw, _MW_PER_W)) for gpu, at in gpus]),
        ("gpu_temperature_celsius", "celsius", "Temperature.", [(at, gpu.temperature_c) for gpu, at in gpus]),
    ]
    lines = [
        line for name, unit, text, samples in metrics for line in _metric(f"perfscope_{name}", unit, text, samples)
    ]
    return "\n".join([*lines, "# EOF"]) + "\n"


def _metric(name: str, unit: str, text: str, samples: Iterable[_Sample]) -> list[str]:
    known = [(labels, value) for labels, value in samples if value is not None]
    if not known:
        return []
    kind, suffix = ("counter", "_total") if name == _COUNTER else ("gauge", "")
    return [
        f"# TYPE {name} {kind}",
        *([f"# UNIT {name} {unit}"] if unit else []),
        f"# HELP {name} {text}",
        *(f"{name}{suffix}{_labels(labels)} {value!r}" for labels, value in known),
    ]


def _labels(labels: dict[str, str]) -> str:
    if not labels:
        return ""
    return "{" + ",".join(f'{name}="{_escape(value)}"' for name, value in labels.items()) + "}"


def _escape(text: str) -> str:
    return text.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")


def _over(value: float | None, unit: float) -> float | None:
    return None if value is None else value / unit


def _seconds(time_ns: float | None) -> float | None:
    return _over(time_ns, NS_PER_S)


class FileTarget:
    """Metrics in a file, as node_exporter's textfile collector reads it; it is replaced at once."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._is_written = False

    def publish(self, text: str) -> None:
        """Replace the file; one that was written before is left as it is while its disk is full.

        Raises:
            SourceError: It cannot be written, the first time.
        """
        try:
            replace_file(self._path, text.encode())
        except SourceError:
            if not self._is_written:
                raise
        self._is_written = True

    def close(self) -> None:
        """Leave the file."""


class PortTarget:
    """Metrics on a port of the loopback interface, at any path."""

    def __init__(self, port: int) -> None:
        self._text = b"# EOF\n"
        target = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                self.send_response(200)
                self.send_header("Content-Type", CONTENT_TYPE)
                self.send_header("Content-Length", str(len(target.text)))
                self.end_headers()
                self.wfile.write(target.text)

            def log_message(self, *_args: object) -> None:
                """Requests are not logged: they come every few seconds."""

        try:
            self._server = ThreadingHTTPServer((_LOOPBACK, port), Handler)
        except OSError as error:
            raise UsageError(f"--openmetrics: port {port} cannot be used: {error.strerror}") from None
        threading.Thread(target=self._server.serve_forever, daemon=True).start()

    @property
    def text(self) -> bytes:
        """What a request is answered."""
        return self._text

    @property
    def port(self) -> int:
        """The port, also where 0 asked for a free one."""
        return int(self._server.server_address[1])

    def publish(self, text: str) -> None:
        """Answer this from now on."""
        self._text = text.encode()

    def close(self) -> None:
        """Free the port."""
        self._server.shutdown()
        self._server.server_close()


def open_target(word: str) -> FileTarget | PortTarget:
    """A port, where the word is a number, else a file.

    Raises:
        UsageError: The port cannot be used, or the file's folder does not exist.
    """
    if word.isdecimal():
        if int(word) > _LARGEST_PORT:
            raise UsageError(f"--openmetrics: there is no port {word}")
        return PortTarget(int(word))
    path = Path(word)
    if not path.parent.is_dir():
        raise UsageError(f"--openmetrics: {path.parent} is not a folder")
    return FileTarget(path)
