"""What happens around training: checkpoint saves, evaluations, memory, the ways in which a job ends badly."""

from __future__ import annotations

import re
from dataclasses import replace

from perfscope.constants import GIB, MIB, NS_PER_MS
from perfscope.sources.joblog.draft import (
    Draft,
    Hit,
    Rule,
    ending,
    number,
)
from perfscope.tables.joblog import Disturbance, Save

_SAVING = "saving since"
_RANKS = 1 << 16
_RANK = re.compile(rb" rank +\d+: ([\d.]+)")
_UNITS = {b"MiB": MIB, b"GiB": GIB, b"KiB": 1024, b"bytes": 1, b"MB": MIB, b"GB": GIB}


def _begin_training(draft: Draft, _hit: Hit) -> None:
    draft.evidence["megatron"] += 1
    draft.restart()


def _saving(draft: Draft, hit: Hit) -> None:
    draft.evidence["megatron"] += 1
    draft.disturb(Disturbance.SAVE)
    iteration = number(hit[1])
    draft.save(Save(None if iteration is None else int(iteration), None, None, _path(hit[2])))
    if hit.timestamp_ns is not None:
        _begun(draft)[len(draft.saves) - 1] = hit.timestamp_ns


def _saved(draft: Draft, hit: Hit) -> None:
    """``successfully saved checkpoint from iteration 10``: a later save may have begun since."""
    iteration, ended = number(hit[1]), hit.timestamp_ns
    place = next((place for place, save in enumerate(draft.saves) if save.iteration == iteration), len(draft.saves) - 1)
    begun = _begun(draft).pop(place, None)
    if begun is None or ended is None or ended < begun:
        return
    if draft.saves[place].asynchronous:
        draft.saves[place] = replace(draft.saves[place], drained_ns=ended - begun)
    elif place == len(draft.saves) - 1:
        draft.time_last_save(ended - begun, "timestamps")


def _begun(draft: Draft) -> dict[int, int]:
    """When each save began that has not ended, by its place in the list."""
    begun = draft.scratch.setdefault(_SAVING, {})
    assert isinstance(begun, dict)
    return begun


def _save_timer(draft: Draft, hit: Hit) -> None:
    """The slowest rank's time: the second of a pair (min, max), the only one, or the largest of a line a rank."""
    ranks = [number(text) for text in _RANK.findall(hit["ranks"])]
    slowest = max((time for time in ranks if time is not None), default=number(hit["slowest"] or hit["only"]))
    if slowest is not None and slowest > 0:
        draft.time_last_save(round(slowest * NS_PER_MS), "timer")


def _deepspeed_saving(draft: Draft, hit: Hit) -> None:
    """DeepSpeed gives no duration: it is from the first file's beginning to the last file's end."""
    draft.evidence["deepspeed"] += 1
    begun = hit.timestamp_ns
    path = hit[1]
    step = re.search(rb"global_step(\d+)", path)
    iteration = int(step[1]) if step else None
    same = draft.saves and iteration is not None and draft.saves[-1].iteration == iteration
    if not same:
        draft.save(Save(iteration, None, None, _path(path)))
        if begun is not None:
            _begun(draft)[len(draft.saves) - 1] = begun
        draft.disturb(Disturbance.SAVE)


def _deepspeed_saved(draft: Draft, hit: Hit) -> None:
    begun, ended = _begun(draft).get(len(draft.saves) - 1), hit.timestamp_ns
    if begun is not None and ended is not None and ended >= begun:
        draft.time_last_save(ended - begun, "timestamps")


def _asynchronous(draft: Draft, hit: Hit) -> None:
    """``scheduled an async checkpoint save``: from here on training goes on."""
    if not draft.saves:
        return
    draft.saves[-1] = replace(draft.saves[-1], asynchronous=True)
    begun, scheduled = _begun(draft).get(len(draft.saves) - 1), hit.timestamp_ns
    if begun is not None and scheduled is not None and scheduled >= begun:
        draft.time_last_save(scheduled - begun, "timestamps")


def _evaluation(draft: Draft, _hit: Hit) -> None:
    draft.disturb(Disturbance.EVALUATION)


def _megatron_memory(draft: Draft, hit: Hit) -> None:
    """Megatron divides by 2**20 and writes MB."""
    draft.see_memory(allocated=_scaled(hit[1], MIB), reserved=_scaled(hit[2], MIB))


def _deepspeed_memory(draft: Draft, hit: Hit) -> None:
    draft.see_memory(allocated=_scaled(hit[1], GIB))


def _smi_memory(draft: Draft, hit: Hit) -> None:
    draft.see_memory(used=_scaled(hit[1], MIB), total=_scaled(hit[2], MIB))


def _device_out_of_memory(draft: Draft, hit: Hit) -> None:
    draft.out_of_memory = "device"
    draft.end("the device ran out of memory")
    total = re.search(
        rb"([\d.]+) ([KMG]iB) total capacity|total capacity of ([\d.]+) ([KMG]iB)", hit.text[hit.line : hit.end]
    )
    if total:
        draft.see_memory(total=_scaled(total[1] or total[3], _UNITS[total[2] or total[4]]))


def _host_out_of_memory(draft: Draft, _hit: Hit) -> None:
    draft.out_of_memory = draft.out_of_memory or "host"
    draft.end("the host ran out of memory")


def _scaled(text: bytes, scale: int) -> float | None:
    value = number(text)
    return None if value is None else value * scale


def _path(text: bytes) -> str | None:
    return text.decode("utf-8", "replace").strip() or None


RULES = (
    Rule(
        b"[before the start of training step]", re.compile(rb"\[before the start of training step\]"), _begin_training
    ),
    Rule(
        b"saving checkpoint at iteration",
        re.compile(rb"saving checkpoint at iteration\s+(\d+)(?: to (\S+))?"),
        _saving,
    ),
    Rule(
        b"successfully saved checkpoint",
        re.compile(rb"successfully saved checkpoint(?: (?:from|at) iteration\s+(\d+))?"),
        _saved,
    ),
    Rule(
        b"save-checkpoint",
        re.compile(
            rb"save-checkpoint(?: \.*)?: *(?:\([\d.]+, *(?P<slowest>[\d.]+)\)|(?P<only>[\d.]+)"
            rb"|(?P<ranks>(?:\n[^\n]{0,40}? rank +\d+: [\d.]+)+))"
        ),
        _save_timer,
        reach=_RANKS,
    ),
    Rule(b"an async checkpoint save", re.compile(rb"scheduled an async checkpoint save"), _asynchronous),
    Rule(b"Saving model checkpoint:", re.compile(rb"Saving model checkpoint: (\S+)"), _deepspeed_saving),
    Rule(b"[Torch] Saved ", re.compile(rb"\[Torch\] Saved (\S+)"), _deepspeed_saved),
    Rule(b"validation loss at ", re.compile(rb"validation loss at (?:iteration )?"), _evaluation),
    Rule(b"validation results at ", re.compile(rb"validation results at iteration"), _evaluation),
    Rule(
        b"memory (MB) |",
        re.compile(rb"memory \(MB\) \|.*?max allocated: ([\d.]+) \|.*?max reserved: ([\d.]+)"),
        _megatron_memory,
    ),
    Rule(b"Max_MA ", re.compile(rb"Max_MA ([\d.]+) GB"), _deepspeed_memory),
    Rule(b"MaxMemAllocated=", re.compile(rb"MaxMemAllocated=([\d.]+)\s*GB"), _deepspeed_memory),
    Rule(b"MiB / ", re.compile(rb"(\d+)MiB / +(\d+)MiB"), _smi_memory),
    Rule(b"CUDA out of memory", re.compile(rb"CUDA out of memory"), _device_out_of_memory),
    Rule(b"OutOfMemoryError", re.compile(rb"OutOfMemoryError"), _device_out_of_memory),
    Rule(b"oom-kill", re.compile(rb"oom[-_]kill"), _host_out_of_memory),
    Rule(b"out-of-memory handler", re.compile(rb"out-of-memory handler"), _host_out_of_memory),
    Rule(
        b"DUE TO TIME LIMIT",
        re.compile(rb"CANCELLED AT .* DUE TO TIME LIMIT"),
        ending("SLURM cancelled it at its time limit"),
    ),
    Rule(b"CANCELLED AT", re.compile(rb"CANCELLED AT"), ending("it was cancelled")),
    Rule(
        b"Traceback (most recent", re.compile(rb"Traceback \(most recent call last\)"), ending("it raised an exception")
    ),
    Rule(b"ChildFailedError", re.compile(rb"ChildFailedError"), ending("a process of it failed")),
    Rule(b"srun: error", re.compile(rb"srun: error"), ending("srun reports an error")),
)
