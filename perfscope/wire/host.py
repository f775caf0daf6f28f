"""What a step's record says of the processor and of waits on the host.

This module is imported inside training jobs: standard library only.
"""

from __future__ import annotations

from typing import NamedTuple


class HostWork(NamedTuple):
    """What the thread that trains did up to the end of a step, as the kernel counts it: in the last ``steps`` steps.

    Where no waits are timed on the host it is read where a step took at least an eighth longer than usual, and once in
    16 steps. The steps between took no longer than usual.

    Attributes:
        cpu_ns: How long a processor ran it.
        delay_ns: How long it was ready to run and had no processor, because others had them.
        system_ns: How much of ``cpu_ns`` was spent in the kernel, as for page faults; to the kernel's clock tick.
        faults: Pages that it touched for the first time, or that were read from a disk.
        preempted: How often it lost its processor to another thread.
        steps: For how many steps all of these count, this one the last of them.
    """

    cpu_ns: int
    delay_ns: int
    system_ns: int
    faults: int
    preempted: int
    steps: int = 1


class HostWaits(NamedTuple):
    """How long the thread that trains waited for other ranks in a step, on the host.

    Attributes:
        collectives_ns: In collectives, those of DDP's backward pass included.
        transfers_ns: In sends and receives, as between the stages of a pipeline.
    """

    collectives_ns: int
    transfers_ns: int


class DeviceProbe(NamedTuple):
    """The times of one step on the device, between events in its stream; the record that holds them is a later one's.

    Attributes:
        before_ns: From the end of the previous step to the beginning of the first forward pass. 0 where none was seen,
            as in the stages of a pipeline.
        forward_ns: Of the forward passes; absent where their ends are not seen, as with FSDP 2.
        backward_ns: From the beginning of the first forward pass to the optimizer, without ``forward_ns``: backward
            passes and exchanges. Where no forward pass was seen, from the end of the step before.
        update_ns: Of the optimizer, from its first part to its last one.
        forward_launch_ns, update_launch_ns, units_launch_ns: For how long of it the device may have waited for the host
            to launch all of it. 0 where that was before the device began it.
        idle_ns: For how long of the step no thread of the process had a processor, at least: its wall time without the
            processor time of all threads.
        units_ns: Of the forward passes of the first modules that FSDP 2 shards, each from when its weights are there:
            they hold no exchange.
    """

    step: int
    before_ns: int
    forward_ns: int | None
    backward_ns: int
    update_ns: int
    forward_launch_ns: int | None = None
    update_launch_ns: int | None = None
    idle_ns: int | None = None
    units_ns: int | None = None
    units_launch_ns: int | None = None


def parse_delay(counters: bytes) -> int | None:
    """The time without a processor from the text of ``/proc/PID/schedstat``; None where it is something else.

    >>> parse_delay(b"38379195 231593 8"), parse_delay(b"")
    (231593, None)
    """
    try:
        _, delay, _ = counters.split()
        return int(delay)
    except ValueError:
        return None
