"""Which GPU a rank trained on: by its UUID, else by its number among the devices of CUDA_VISIBLE_DEVICES.

The rules come from CUDA's programming guide. An absent variable means every device. The list ends before the first
entry that names no device, so ``-1`` and the empty text leave none. An entry is a number, a UUID or the unambiguous
beginning of one. A repeated entry leaves none. MIG instances are no devices here: nothing of them is sampled.
"""

from __future__ import annotations

from collections.abc import Sequence

from perfscope.tables.gpus import GpuSamples
from perfscope.wire.records import RankRecord

_BY_BUS = "PCI_BUS_ID"


def list_visible_devices(variable: str | None, order: str | None, gpus: Sequence[GpuSamples]) -> tuple[str, ...] | None:
    """The UUIDs of a process's CUDA devices, in its order; None where the order of CUDA's numbers cannot be known.

    ``variable`` and ``order`` are CUDA_VISIBLE_DEVICES and CUDA_DEVICE_ORDER, ``gpus`` all GPUs of the machine.
    """
    numbered = sorted((gpu for gpu in gpus if gpu.index is not None), key=lambda gpu: gpu.index or 0)
    if len(numbered) < len(gpus):
        numbered = list(gpus)
    if variable is None:
        return tuple(gpu.uuid for gpu in numbered) if _order_is_known(order, numbered) else None
    devices: list[str] = []
    for entry in (word.strip() for word in variable.split(",")):
        if entry.isdigit() and not _order_is_known(order, numbered):
            return None
        device = _find_by_entry(entry, numbered)
        if device is None:
            break
        if device in devices:
            return ()
        devices.append(device)
    return tuple(devices)


def find_device(record: RankRecord, gpus: Sequence[GpuSamples]) -> str | None:
    """The UUID, by NVML's own name, of the device that a rank trained on; None where that is unknown."""
    if record.device_uuid is not None:
        return _find_by_uuid(record.device_uuid, gpus) or record.device_uuid
    visible = list_visible_devices(record.visible_devices, record.device_order, gpus)
    index = record.device_index
    return visible[index] if visible is not None and index is not None and index < len(visible) else None


def find_devices(record: RankRecord, gpus: Sequence[GpuSamples]) -> tuple[str, ...]:
    """The UUIDs of all devices that hold tensors of a rank."""
    if record.device_uuids is not None and len(record.device_uuids) > 1:
        return tuple(_find_by_uuid(uuid, gpus) or uuid for uuid in record.device_uuids)
    device = find_device(record, gpus)
    return () if device is None else (device,)


def _find_by_uuid(uuid: str, gpus: Sequence[GpuSamples]) -> str | None:
    return next((gpu.uuid for gpu in gpus if gpu.uuid.lower() == uuid.lower()), None)


def _order_is_known(order: str | None, gpus: Sequence[GpuSamples]) -> bool:
    """NVML counts by bus; CUDA does so where it is configured to, or where all GPUs are equally fast."""
    return order == _BY_BUS or len({gpu.name for gpu in gpus}) <= 1


def _find_by_entry(entry: str, gpus: Sequence[GpuSamples]) -> str | None:
    if entry.isdigit():
        return gpus[int(entry)].uuid if int(entry) < len(gpus) else None
    named = [gpu.uuid for gpu in gpus if entry.startswith("GPU-") and gpu.uuid.startswith(entry)]
    return named[0] if len(named) == 1 else None  # the beginning of several names none
