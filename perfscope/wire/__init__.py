"""Names of the files of a run, which hooks write and sources read; their records are in ``perfscope.wire.records``.

Every record is one line of JSON that is written at once, so that a run that is killed leaves complete lines. A field
that is unknown is left out; readers must not expect an end record. The layout::

    RUN/run.json                     the command, its environment without secrets, versions, the outcome.
    RUN/ranks/00000/rank.json        RankRecord: host, process, device and clock of the rank.
    RUN/ranks/00000/parallel.json    its index on each axis of parallelism, and the sizes; see wire/axes.py.
    RUN/ranks/00000/model.json       ModelRecord: shapes and types of the parameters, configuration of the model.
    RUN/ranks/00000/setup.json       SetupRecord: options of data loaders, DDP, optimizer and engine.
    RUN/ranks/00000/places.json      PlacesRecord: lines of the script where the training thread was seen.
    RUN/ranks/00000/steps.jsonl      one StepRecord per training step, the last ones.
    RUN/ranks/00000/steps.000001.jsonl[.gz]  earlier ones, 2 MiB a file; see hooks/record_files.py.
    RUN/ranks/00000/events.jsonl     one WindowRecord, NoteRecord or EndRecord per event.
    RUN/ranks/00000/micro_batches.jsonl   one MicroBatchRecord per training step of a pipeline.
    RUN/ranks/00000/checkpoints.jsonl     one CheckpointRecord per call that saved.
    RUN/traces/HOST_PID.NS.pt.trace.json[.gz]         windows with operators.
    RUN/traces/light/HOST_PID.NS.pt.trace.json[.gz]   light windows, apart because viewers expect one trace a rank.
    RUN/traces/[light/]HOST_PID.NS.pt.trace.partials  what was measured of a trace, see perfscope/sources/partials.py.
    RUN/memory/HOST_PID.NS.memory.jsonl[.gz]          the allocator's history, see perfscope/wire/memory.py.
    RUN/nvml/HOST.jsonl              samples of every GPU of a node; see hooks/nvml/sampler.py.
    RUN/hosts/HOST.json              each host's run.json, written by `perfscope collect`.
    RUN/collected.json               the parts of the run, written by `perfscope collect`.
    RUN/page.html                    charts of the run, written when the command has ended.
    RUN/.boot/                       what the processes of the run load at their start; removed when the command ends.

A rank that starts again in the same run (an elastic restart) writes to ``ranks/00000.1`` and so on.
This package is imported inside training jobs: standard library only. These names are imported by every command, too,
which loads no record for them.
"""

from __future__ import annotations

import re

SCHEMA = "perfscope/run/1"
_RANK_FOLDER_NAME = re.compile(r"(\d{5,})(?:\.(\d+))?")

RUN_FILE = "run.json"
RANKS_FOLDER = "ranks"
RANK_FILE = "rank.json"
PARALLEL_FILE = "parallel.json"
MODEL_FILE = "model.json"
SETUP_FILE = "setup.json"
PLACES_FILE = "places.json"
STEPS_FILE = "steps.jsonl"
EVENTS_FILE = "events.jsonl"
MICRO_BATCHES_FILE = "micro_batches.jsonl"
CHECKPOINTS_FILE = "checkpoints.jsonl"
TRACES_FOLDER = "traces"
NVML_FOLDER = "nvml"
HOSTS_FOLDER = "hosts"
COLLECTED_FILE = "collected.json"
PAGE_FILE = "page.html"
#: Where runs are whose folder nobody named.
RUNS_FOLDER = "runs"
BOOT_FOLDER = ".boot"
TRACE_SUFFIX = ".pt.trace.json"

#: The key of our metadata inside a trace file.
TRACE_METADATA = "perfscope"

#: What a window records: operators and kernels, or kernels and their launches alone, which disturbs training less.
OPERATORS = "operators"
LIGHT = "light"
#: The folder of light windows in ``RUN/traces``.
LIGHT_FOLDER = "light"

#: How a step relates to a profiler window.
WARMUP = "warmup"
PROFILED = "profiled"
EXPORT = "export"

#: Kinds of spans: forward passes without gradients, text that a model generates, torch.compile, the wait for the
#: first batch, which is over when the first step begins, and full collections of Python's garbage.
VALIDATION = "validation"
GENERATION = "generation"
COMPILATION = "compilation"
FIRST_BATCH = "first_batch"
GARBAGE = "garbage"


def rank_folder(rank: int, attempt: int = 0) -> str:
    """Name the folder of a rank's process; ``attempt`` counts the processes that had the rank before.

    >>> rank_folder(3), rank_folder(3, 1)
    ('00003', '00003.1')
    """
    return f"{rank:05d}" if attempt == 0 else f"{rank:05d}.{attempt}"


def parse_rank_folder(name: str) -> tuple[int, int] | None:
    """Read the rank and the attempt from a folder's name; None for another folder.

    >>> parse_rank_folder("00003.1"), parse_rank_folder("00003.moving")
    ((3, 1), None)
    """
    match = _RANK_FOLDER_NAME.fullmatch(name)
    return None if match is None else (int(match[1]), int(match[2] or 0))
