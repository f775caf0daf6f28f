"""The files of this process's rank, claimed when the process has shown that it trains: nothing is written before."""

from __future__ import annotations

import contextlib
import itertools
import os
import platform
import socket
import sys
import time
from typing import TYPE_CHECKING, Any

from perfscope import wire
from perfscope.hooks.facts.launched_rank import describe_startup, rank_and_world_size
from perfscope.hooks.facts.secrets import redact_arguments, redact_text
from perfscope.hooks.guard import call_safely
from perfscope.hooks.late_writer import LateWriter
from perfscope.hooks.messages import write_message
from perfscope.hooks.record_files import RecordFile, replace_file
from perfscope.hooks.side_process import start_once_a_node
from perfscope.wire.records import NoteRecord, RankRecord, to_file, to_line

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from perfscope.hooks.config import Config
    from perfscope.hooks.facts.layout import LayoutDocument, Lines
    from perfscope.hooks.watch.watch import Watch


class Recorder:
    """What writes the files; one that few processes need is created by its first record.

    ``append`` raises OSError where the disk is full or gone; ``append_late`` raises any earlier error.
    """

    who: RankRecord

    def __init__(
        self,
        run_dir: str,
        rank: int,
        read_beside: Callable[[], Mapping[str, object]] | None = None,
        look_beside: Callable[[], None] | None = None,
    ) -> None:
        self.folder = _claim_folder(os.path.join(run_dir, wire.RANKS_FOLDER), rank)
        self._files: dict[str, RecordFile] = {}
        self.steps_file = self._file(wire.STEPS_FILE)
        self._file(wire.EVENTS_FILE)
        self.late = LateWriter(read_beside, look_beside)

    def append(self, name: str, record: Any) -> None:
        """Write a record, after the steps that came before it."""
        self.late.flush()
        self._file(name).append(to_line(record))

    def append_late(self, name: str, record: Any) -> None:
        """Write a record as late as a step."""
        self.late.add(self._file(name), to_line, record)

    def replace(self, name: str, content: bytes) -> None:
        """Write a file in place of what was written before."""
        replace_file(os.path.join(self.folder, name), content)

    def _file(self, name: str) -> RecordFile:
        if name not in self._files:
            is_limited = name in (wire.STEPS_FILE, wire.MICRO_BATCHES_FILE)
            self._files[name] = RecordFile(os.path.join(self.folder, name), is_limited=is_limited)
        return self._files[name]


def _claim_folder(ranks: str, rank: int) -> str:
    os.makedirs(ranks, exist_ok=True)
    for attempt in itertools.count():
        folder = os.path.join(ranks, wire.rank_folder(rank, attempt))
        with contextlib.suppress(FileExistsError):
            os.mkdir(folder)
            break
    return folder


class RankFiles:
    """The files of one rank's process; notes wait until they are claimed.

    The thread that writes records calls ``read_beside`` for ``take_news``, and lets the ``watch`` look at training.
    """

    def __init__(
        self,
        config: Config,
        read_beside: Callable[[], Mapping[str, object]],
        watch: Watch,
    ) -> None:
        self._config = config
        self._read_beside = read_beside
        self._watch = watch
        self._recorder: Recorder | None = None
        self._notes: list[str] = []
        self._layout: LayoutDocument | None = None
        self.lines: Lines = {}

    def claim(self) -> Recorder:
        """What writes the files, which are claimed now where they were not, and knows who the rank is.

        Raises OSError: the run's folder cannot be written to.
        """
        if self._recorder is not None:
            return self._recorder
        config, watch = self._config, self._watch
        rank, world_size = rank_and_world_size()
        recorder = Recorder(config.run_dir, rank, self._read_beside, watch.look)
        recorder.who = describe_rank(rank, world_size, config.run_id)
        self._recorder = recorder
        recorder.replace(wire.RANK_FILE, to_line(recorder.who))
        for text in self._notes:
            recorder.append(wire.EVENTS_FILE, NoteRecord(text))
        if config.nvml_hz > 0 and config.nvml_path is not None:
            start_sampler(config)
        _, error = call_safely(lambda: watch.begin(recorder.folder, recorder.who))
        if error is not None:
            self.note(f"stalls and failures are not watched: {error!r}")
        recorder.late.start()
        return recorder

    def claimed_rank(self) -> int | None:
        """The rank, where its files are claimed."""
        return None if self._recorder is None else self._recorder.who.rank

    def update_rank(self) -> None:
        """Write who the rank is once more, when its device is known."""
        recorder = self.claim()
        recorder.who = describe_rank(recorder.who.rank, recorder.who.world_size, self._config.run_id)
        recorder.replace(wire.RANK_FILE, to_line(recorder.who))

    def take_news(self) -> tuple[int, Mapping[str, object] | None]:
        """See LateWriter."""
        return (0, None) if self._recorder is None else self._recorder.late.take_news()

    def close(self) -> None:
        """Write what waits to be written. Raises OSError: the disk is full or gone."""
        if self._recorder is not None:
            self._recorder.late.close()

    def note(self, text: str) -> None:
        """Keep something that a reader of the report must know."""
        text = redact_text(text)  # it may quote an error, and that a path or an address
        if self._recorder is None:
            self._notes.append(text)
            return
        try:
            self._recorder.append(wire.EVENTS_FILE, NoteRecord(text))
        except OSError:
            write_message(text)

    def write_layout(self, layout: LayoutDocument | None, lines: Lines) -> None:
        """Write the rank's position in the process groups, where it is known and not written yet."""
        self.lines = lines
        if layout is not None and layout != self._layout:
            self.claim().replace(wire.PARALLEL_FILE, to_file(layout))
            self._layout = layout


def start_sampler(config: Config) -> None:
    """Start the NVML sampler, unless another rank of this node has; after a failure the run has no samples."""
    script = os.path.join(os.path.dirname(os.path.abspath(__file__)), "nvml", "sampler.py")
    arguments = (str(config.nvml_path), str(config.nvml_hz), str(os.getpid()))
    start_once_a_node("nvml", config.run_dir, os.path.join(config.run_dir, wire.NVML_FOLDER), script, arguments)


def describe_rank(rank: int, world_size: int, run_id: str | None = None) -> RankRecord:
    """Who a rank is: its process, host and device; facts that are not known yet are left out."""
    torch = sys.modules.get("torch")
    deepspeed = sys.modules.get("deepspeed")
    host, port = os.environ.get("MASTER_ADDR"), os.environ.get("MASTER_PORT")
    return RankRecord(
        rank=rank,
        world_size=world_size,
        host=socket.gethostname(),
        pid=os.getpid(),
        wall_ns=time.time_ns(),
        monotonic_ns=time.monotonic_ns(),
        python=platform.python_version(),
        torch=getattr(torch, "__version__", None),
        deepspeed=getattr(deepspeed, "__version__", None),
        argv=tuple(redact_arguments(sys.argv)),
        run_id=run_id,
        rendezvous=f"{host}:{port}" if host and port else None,
        **describe_startup(),
        **_describe_device(torch),
    )


def _describe_device(torch: Any) -> dict[str, Any]:
    if torch is None:
        return {}
    variables = {"visible_devices": "CUDA_VISIBLE_DEVICES", "device_order": "CUDA_DEVICE_ORDER"}
    device: dict[str, Any] = {field: os.environ[name] for field, name in variables.items() if name in os.environ}
    if not (torch.cuda.is_available() and torch.cuda.is_initialized()):
        return {**device, "device_type": "cpu"}
    index = torch.cuda.current_device()
    device |= {
        "device_type": "cuda",
        "device_name": torch.cuda.get_device_properties(index).name,
        "device_index": index,
    }
    uuid = _uuid(torch, index)
    if uuid is not None:
        device["device_uuid"] = uuid
        used = [index for index in range(torch.cuda.device_count()) if torch.cuda.memory_allocated(index) > 0]
        if len(used) > 1:
            device["device_uuids"] = tuple(_uuid(torch, index) for index in used)
    return device


def _uuid(torch: Any, index: int) -> str | None:
    """The device's UUID; None before torch 2.4, which does not report it."""
    uuid = getattr(torch.cuda.get_device_properties(index), "uuid", None)
    return None if uuid is None else f"GPU-{uuid}"
