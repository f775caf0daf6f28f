"""Which GPU a rank trained on: by its UUID, else by its number among the devices of CUDA_VISIBLE_DEVICES.

The rules come from CUDA's programming guide. An absent variable means every device. The list ends before the first
entry that names no device, so ``-1`` and the empty text leave none. An entry is a number, a UUID or the unambiguous
beginning of one. A repeated entry leaves none. A MIG device is named by its UUID; without a name the first instance of
a GPU is used.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from perfscope.tables.gpus import GpuSamples
from perfscope.wire.records import RankRecord

_BY_BUS = "PCI_BUS_ID"


def list_visible_devices(variable: str | None, order: str | None, gpus: Sequence[GpuSamples]) -> tuple[str, ...] | None:
    """The UUIDs of a process's CUDA devices, in its order.

    Args:
        variable: CUDA_VISIBLE_DEVICES; None where it is not set.
        order: CUDA_DEVICE_ORDER; None where it is not set.
        gpus: All GPUs of the machine.

    Returns:
        UUIDs of GPUs or MIG instances; None where the order of CUDA's numbers cannot be known.
    """
    numbered = sorted((gpu for gpu in gpus if gpu.index is not None), key=lambda gpu: gpu.index or 0)
    if len(numbered) < len(gpus):
        numbered = list(gpus)
    if variable is None:
        return tuple(_cuda_device(gpu) for gpu in numbered) if _order_is_known(order, numbered) else None
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
    """The UUID, by NVML's own name, of the device that a rank trained on; None where that is unknown.

    Args:
        record: The rank.
        gpus: All GPUs of its machine.
    """
    visible = list_visible_devices(record.visible_devices, record.device_order, gpus)
    index = record.device_index
    by_number = visible[index] if visible is not None and index is not None and index < len(visible) else None
    if record.device_uuid is None:
        return by_number
    return _find_by_uuid(record.device_uuid, by_number, gpus) or record.device_uuid


def find_devices(record: RankRecord, gpus: Sequence[GpuSamples]) -> tuple[str, ...]:
    """The UUIDs of all devices that hold tensors of a rank."""
    if record.device_uuids is not None and len(record.device_uuids) > 1:
        return tuple(_find_by_uuid(uuid, None, gpus) or uuid for uuid in record.device_uuids)
    device = find_device(record, gpus)
    return () if device is None else (device,)


def _find_by_uuid(uuid: str, by_number: str | None, gpus: Sequence[GpuSamples]) -> str | None:
    """NVML's UUID of a device whose UUID torch states without the kind of device."""
    bare_uuid = _strip_kind(uuid)
    for gpu in gpus:
        for instance in gpu.instances:
            if _strip_kind(instance.uuid) == bare_uuid:
                return instance.uuid
        if _strip_kind(gpu.uuid) == bare_uuid:
            # Some drivers report the UUID of the full GPU for an instance of it.
            instances = {instance.uuid for instance in gpu.instances}
            return by_number if by_number in instances else _cuda_device(gpu)
    return None


def _order_is_known(order: str | None, gpus: Sequence[GpuSamples]) -> bool:
    """NVML counts by bus; CUDA does so where it is configured to, or where all GPUs are equally fast."""
    return order == _BY_BUS or len({gpu.name for gpu in gpus}) <= 1


def _find_by_entry(entry: str, gpus: Sequence[GpuSamples]) -> str | None:
    if entry.isdigit():
        return _cuda_device(gpus[int(entry)]) if int(entry) < len(gpus) else None
    if entry.startswith("MIG-"):
        instances = (instance for gpu in gpus for instance in gpu.instances)
        return _unambiguous(instance.uuid for instance in instances if instance.uuid.startswith(entry))
    if entry.startswith("GPU-"):
        return _unambiguous(_cuda_device(gpu) for gpu in gpus if gpu.uuid.startswith(entry))
    return None


def _unambiguous(uuids: Iterable[str]) -> str | None:
    """The only one; None of none or several."""
    candidates = list(uuids)
    return candidates[0] if len(candidates) == 1 else None


def _cuda_device(gpu: GpuSamples) -> str:
    """The device that CUDA uses of a GPU: with MIG, its first instance."""
    return gpu.instances[0].uuid if gpu.instances else gpu.uuid


def _strip_kind(uuid: str) -> str:
    return uuid.removeprefix("GPU-").removeprefix("MIG-").lower()
