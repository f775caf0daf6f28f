"""Samples every GPU of this node until the rank that started it ends.

Run by itself: ``python -I -S sampler.py FOLDER_OF_PYNVML HZ PID``. It writes lines of JSON, the first of which
says who the GPUs are; in every other one ``gpus`` holds, in the same order, what was read at that moment::

    {"host", "wall_ns", "t_ns", "hz", "gpus": [{"uuid", "index", "name", "power_limit_mw", "mig_devices", ...}]}
    {"t_ns": monotonic, "gpus": [{"power_mw", "sm_clock_mhz", "gpu_util_percent", "throttle", "energy_mj", ...}]}
    {"t_ns", "slower": "energy", "call_ns": 3100000, "period_ns": 1240000000}
    {"t_ns", "lost": "GPU-..."}
    {"t_ns", "sampler": {"cpu_ns", "rounds", "late"}}

A value that a GPU does not tell is left out. Each kind of value has a rate of its own: calls that take microseconds are
made at the fast rate (for an hour, and then once a second), counters once a second, and whatever proves to take more
than its share of the time is made less often, so that sampling a node never costs more than a few percent of one of its
cores.
"""

from __future__ import annotations

import json
import os
import socket
import sys
import time
from collections.abc import Callable
from functools import partial
from typing import Any

_SLOW_PERIOD_NS = 10**9
#: After an hour once a second is enough: a week of a node's samples is to stay readable.
_FULL_RATE_NS = 3600 * 10**9
#: A kind of value may take this share of the sampler's time; there are nine kinds.
_SHARE = 0.01
#: One call in many takes milliseconds, and so does the first of each kind: the median of so many rounds is what counts.
_ROUNDS_JUDGED = 5
_FEWEST_JUDGED = 3
#: A period changes by this factor at least, so that it is not changed and said at every round.
_NOTABLE = 1.2
_FAILURES_ALLOWED = 10
_COST_PERIOD_NS = 30 * 10**9
_NEVER_AGAIN = ("NOT_SUPPORTED", "FUNCTION_NOT_FOUND", "NO_PERMISSION", "INVALID_ARGUMENT", "DEPRECATED")
_LOST = ("GPU_IS_LOST", "RESET_REQUIRED", "GPU_NOT_FOUND", "UNINITIALIZED")
#: The sum over a GPU's NVLinks.
_ALL_LINKS = 0xFFFFFFFF
#: What field values are called here, by NVML's own names; counters, so that a sample that is missed loses nothing.
_FIELDS = {
    "nvlink_tx_kib": ("NVML_FI_DEV_NVLINK_THROUGHPUT_DATA_TX", _ALL_LINKS),
    "nvlink_rx_kib": ("NVML_FI_DEV_NVLINK_THROUGHPUT_DATA_RX", _ALL_LINKS),
    "pcie_tx_bytes": ("NVML_FI_DEV_PCIE_COUNT_TX_BYTES", 0),
    "pcie_rx_bytes": ("NVML_FI_DEV_PCIE_COUNT_RX_BYTES", 0),
    "sw_power_cap_ns": ("NVML_FI_DEV_CLOCKS_EVENT_REASON_SW_POWER_CAP", 0),
    "sync_boost_ns": ("NVML_FI_DEV_CLOCKS_EVENT_REASON_SYNC_BOOST", 0),
    "sw_thermal_ns": ("NVML_FI_DEV_CLOCKS_EVENT_REASON_SW_THERM_SLOWDOWN", 0),
    "hw_thermal_ns": ("NVML_FI_DEV_CLOCKS_EVENT_REASON_HW_THERM_SLOWDOWN", 0),
    "hw_power_brake_ns": ("NVML_FI_DEV_CLOCKS_EVENT_REASON_HW_POWER_BRAKE_SLOWDOWN", 0),
}
_SIGNED = (4, 5)


class Device:
    """One GPU as the sampler sees it.

    Attributes:
        handle: NVML's.
        uuid: Its name in the records.
        instances: Handles of its MIG instances.
        lost: It fell off the bus; nothing more is asked of it.
        refused: Kinds of values that it does not tell.
        failures: How often in a row a kind of value failed.
        counted: The counters that it tells.
    """

    def __init__(self, handle: Any, uuid: str, instances: list[Any]) -> None:
        self.handle = handle
        self.uuid = uuid
        self.instances = instances
        self.lost = False
        self.refused: set[str] = set()
        self.failures: dict[str, int] = {}
        self.counted: frozenset[str] = frozenset()


class Metric:
    """One kind of value, how it is read, and how often.

    Attributes:
        name: What it is called.
        read: Gives the values of one GPU.
        period_ns: The time between two rounds over the GPUs.
        due_ns: When the next round is due.
    """

    def __init__(self, name: str, read: Callable[[Device], dict[str, Any]], period_ns: int) -> None:
        self.name = name
        self.read = read
        self.nominal_ns = period_ns
        self.period_ns = period_ns
        self.due_ns = 0
        self._costs: list[int] = []

    def at_most_once_in(self, period_ns: int) -> None:
        """Make the rounds rarer from the next one on."""
        self.nominal_ns = max(self.nominal_ns, period_ns)
        self.period_ns = max(self.period_ns, period_ns)

    def took(self, cost_ns: int, began_ns: int) -> int | None:
        """Plan the round after the one that began then; its usual cost is given back where it makes rounds rarer."""
        self._costs = [*self._costs[1 - _ROUNDS_JUDGED :], cost_ns]
        usual_ns = sorted(self._costs)[len(self._costs) // 2]
        # The first rounds keep the nominal rate: they tell too little.
        known = len(self._costs) >= _FEWEST_JUDGED
        period_ns = max(self.nominal_ns, int(usual_ns / _SHARE)) if known else self.nominal_ns
        slower = period_ns > _NOTABLE * self.period_ns
        if slower or period_ns < self.period_ns / _NOTABLE:
            self.period_ns = period_ns
        # A missed round is left out, and rounds stay a whole number of periods apart.
        self.due_ns = max(self.due_ns + self.period_ns, began_ns + self.period_ns // 2)
        return usual_ns if slower else None


def main(folder: str, hz: float, parent: int) -> None:
    """Sample until the parent is gone."""
    sys.path.append(folder)
    try:
        import pynvml

        pynvml.nvmlInit()
    except Exception as error:  # noqa: BLE001 - whatever NVML lacks here, it is said and training goes on
        _write({"note": f"NVML is not sampled: {error}"})
        return
    devices, known = _find_devices(pynvml)
    now = {"host": socket.gethostname(), "wall_ns": time.time_ns(), "t_ns": time.monotonic_ns()}
    _write({**now, "hz": hz, **_driver(pynvml), "gpus": known})
    if devices:
        _sample_until_orphaned(pynvml, devices, _metrics(pynvml, int(1e9 / hz)), parent)
    else:
        _write({"note": "NVML is not sampled: it knows no GPU"})


def _sample_until_orphaned(pynvml: Any, devices: list[Device], metrics: list[Metric], parent: int) -> None:
    rounds, late = 0, 0
    cost_due_ns = time.monotonic_ns() + _COST_PERIOD_NS
    full_rate_until_ns = time.monotonic_ns() + _FULL_RATE_NS
    while os.getppid() == parent:
        began_ns = time.monotonic_ns()
        late += metrics[0].due_ns > 0 and began_ns > metrics[0].due_ns + metrics[0].period_ns
        values: list[dict[str, Any]] = [{} for _ in devices]
        notes: list[dict[str, Any]] = []
        for metric in metrics:
            if metric.due_ns <= began_ns + metrics[0].nominal_ns // 4:
                notes += _round(pynvml, metric, devices, values, began_ns)
        _write({"t_ns": began_ns, "gpus": values})
        for note in notes:
            _write({"t_ns": began_ns, **note})
        rounds += 1
        if began_ns >= cost_due_ns:
            _write({"t_ns": began_ns, "sampler": {"cpu_ns": time.process_time_ns(), "rounds": rounds, "late": late}})
            cost_due_ns += _COST_PERIOD_NS
        if began_ns >= full_rate_until_ns:
            for metric in metrics:
                metric.at_most_once_in(_SLOW_PERIOD_NS)
        due_ns = min(metric.due_ns for metric in metrics)
        # Half a second at most, so that the sampler ends soon after its rank at any rate.
        time.sleep(min(0.5, max(0.0, (due_ns - time.monotonic_ns()) / 1e9)))


def _round(
    pynvml: Any, metric: Metric, devices: list[Device], values: list[dict[str, Any]], tick_ns: int
) -> list[dict[str, Any]]:
    """Read one kind of value of every GPU; gives back what is to be noted."""
    notes: list[dict[str, Any]] = []
    began_ns = time.monotonic_ns()
    asked = 0
    for device, found in zip(devices, values, strict=True):
        if device.lost or metric.name in device.refused:
            continue
        asked += 1
        try:
            found.update(metric.read(device))
            device.failures.pop(metric.name, None)
        except AttributeError:  # this pynvml has no such call
            device.refused.add(metric.name)
        except pynvml.NVMLError as error:
            _count_failure(pynvml, metric.name, device, error)
            if device.lost:
                notes.append({"lost": device.uuid})
    usual_ns = metric.took(time.monotonic_ns() - began_ns, tick_ns)
    if usual_ns is not None:
        call_ns = usual_ns // max(1, asked)
        notes.append({"slower": metric.name, "call_ns": call_ns, "period_ns": metric.period_ns})
    return notes


def _count_failure(pynvml: Any, name: str, device: Device, error: Any) -> None:
    if _is(pynvml, error, _LOST):
        device.lost = True
    elif _is(pynvml, error, _NEVER_AGAIN):
        device.refused.add(name)
    else:
        device.failures[name] = device.failures.get(name, 0) + 1
        if device.failures[name] >= _FAILURES_ALLOWED:
            device.refused.add(name)


def _is(pynvml: Any, error: Any, names: tuple[str, ...]) -> bool:
    return error.value in [getattr(pynvml, f"NVML_ERROR_{name}", None) for name in names]


def _metrics(pynvml: Any, fast_ns: int) -> list[Metric]:
    """Every kind of value; what is integrated over time comes first, nearest to the time of the line."""
    slow_ns = max(fast_ns, _SLOW_PERIOD_NS)
    fields = [(name, getattr(pynvml, field, None), scope) for name, (field, scope) in _FIELDS.items()]
    known = [(name, number, scope) for name, number, scope in fields if number is not None]

    def utilisation(device: Device) -> dict[str, Any]:
        rates = pynvml.nvmlDeviceGetUtilizationRates(device.handle)
        return {"gpu_util_percent": rates.gpu}

    def throttle(device: Device) -> dict[str, Any]:
        ask = getattr(pynvml, "nvmlDeviceGetCurrentClocksEventReasons", None)
        try:
            if ask is not None:
                return {"throttle": ask(device.handle)}
        except pynvml.NVMLError as error:
            if not _is(pynvml, error, ("FUNCTION_NOT_FOUND",)):
                raise
        return {"throttle": pynvml.nvmlDeviceGetCurrentClocksThrottleReasons(device.handle)}

    def memory(device: Device) -> dict[str, Any]:
        found = {"memory_used_bytes": pynvml.nvmlDeviceGetMemoryInfo(device.handle).used}
        instances = [_known(pynvml, {"memory_used_bytes": partial(_used, pynvml, one)}) for one in device.instances]
        return {**found, "mig_devices": instances} if instances else found

    def counters(device: Device) -> dict[str, Any]:
        answers = pynvml.nvmlDeviceGetFieldValues(device.handle, [(number, scope) for _, number, scope in known])
        found = {
            name: answer.value.sllVal if answer.valueType in _SIGNED else answer.value.ullVal
            for (name, _, _), answer in zip(known, answers, strict=True)
            if answer.nvmlReturn == 0 and answer.valueType != 0
        }
        device.counted = frozenset(found)
        return found

    def pcie(device: Device) -> dict[str, Any]:
        """Where the counters above do not exist; it takes 20 ms a direction and is the mean over these."""
        if "pcie_tx_bytes" in device.counted:
            device.refused.add("pcie")
            return {}
        ask = pynvml.nvmlDeviceGetPcieThroughput
        return {
            "pcie_tx_kb_per_s": ask(device.handle, pynvml.NVML_PCIE_UTIL_TX_BYTES),
            "pcie_rx_kb_per_s": ask(device.handle, pynvml.NVML_PCIE_UTIL_RX_BYTES),
        }

    return [
        Metric("power", lambda device: {"power_mw": pynvml.nvmlDeviceGetPowerUsage(device.handle)}, fast_ns),
        Metric("throttle", throttle, fast_ns),
        Metric("clock", lambda one: {"sm_clock_mhz": pynvml.nvmlDeviceGetClockInfo(one.handle, 1)}, fast_ns),
        Metric("utilisation", utilisation, fast_ns),
        Metric("memory", memory, fast_ns),
        Metric("temperature", lambda one: {"temperature_c": pynvml.nvmlDeviceGetTemperature(one.handle, 0)}, fast_ns),
        Metric("energy", lambda one: _energy(pynvml, one), slow_ns),
        Metric("counters", counters, slow_ns),
        Metric("pcie", pcie, slow_ns),
    ]


def _energy(pynvml: Any, device: Device) -> dict[str, Any]:
    """The counter with the time at which it was read, because the calls before it may have taken a while."""
    began_ns = time.monotonic_ns()
    energy_mj = pynvml.nvmlDeviceGetTotalEnergyConsumption(device.handle)
    return {"energy_mj": energy_mj, "energy_t_ns": (began_ns + time.monotonic_ns()) // 2}


def _used(pynvml: Any, handle: Any) -> Any:
    return pynvml.nvmlDeviceGetMemoryInfo(handle).used


def _find_devices(pynvml: Any) -> tuple[list[Device], list[dict[str, Any]]]:
    """The GPUs that answer, and who they are."""
    devices, known = [], []
    for index in range(pynvml.nvmlDeviceGetCount()):
        try:
            handle = pynvml.nvmlDeviceGetHandleByIndex(index)
        except pynvml.NVMLError:
            continue  # off the bus already, or another job's
        instances = _instances(pynvml, handle)
        facts = _identify(pynvml, handle)
        if instances:
            facts["mig_devices"] = [_identify_instance(pynvml, instance) for instance in instances]
        devices.append(Device(handle, facts.get("uuid", ""), instances))
        known.append({"index": index, **facts})
    return devices, known


def _identify(pynvml: Any, handle: Any) -> dict[str, Any]:
    return _known(
        pynvml,
        {
            "uuid": lambda: pynvml.nvmlDeviceGetUUID(handle),
            "name": lambda: pynvml.nvmlDeviceGetName(handle),
            "power_limit_mw": lambda: pynvml.nvmlDeviceGetEnforcedPowerLimit(handle),
            "power_limit_default_mw": lambda: pynvml.nvmlDeviceGetPowerManagementDefaultLimit(handle),
            "memory_total_bytes": lambda: pynvml.nvmlDeviceGetMemoryInfo(handle).total,
            "sm_clock_max_mhz": lambda: pynvml.nvmlDeviceGetMaxClockInfo(handle, 1),
            "mig": lambda: pynvml.nvmlDeviceGetMigMode(handle)[0] == 1,
        },
    )


def _identify_instance(pynvml: Any, handle: Any) -> dict[str, Any]:
    return _known(
        pynvml,
        {
            "uuid": lambda: pynvml.nvmlDeviceGetUUID(handle),
            "name": lambda: pynvml.nvmlDeviceGetName(handle),
            "gpu_instance": lambda: pynvml.nvmlDeviceGetGpuInstanceId(handle),
            "compute_instance": lambda: pynvml.nvmlDeviceGetComputeInstanceId(handle),
            "memory_total_bytes": lambda: pynvml.nvmlDeviceGetMemoryInfo(handle).total,
        },
    )


def _instances(pynvml: Any, handle: Any) -> list[Any]:
    """Handles of the MIG instances; none where MIG is off or unknown."""
    found: list[Any] = []
    try:
        if pynvml.nvmlDeviceGetMigMode(handle)[0] != 1:
            return found
        for index in range(pynvml.nvmlDeviceGetMaxMigDeviceCount(handle)):
            try:
                found.append(pynvml.nvmlDeviceGetMigDeviceHandleByIndex(handle, index))
            except pynvml.NVMLError:
                continue  # no instance has this number
    except (AttributeError, pynvml.NVMLError):
        return found
    return found


def _driver(pynvml: Any) -> dict[str, Any]:
    return _known(pynvml, {"driver": pynvml.nvmlSystemGetDriverVersion})


def _known(pynvml: Any, calls: dict[str, Callable[[], Any]]) -> dict[str, Any]:
    values = {}
    for name, call in calls.items():
        try:
            value = call()
        except (AttributeError, pynvml.NVMLError):
            continue
        values[name] = value.decode() if isinstance(value, bytes) else value
    return values


def _write(value: dict[str, Any]) -> None:
    line = json.dumps(value, separators=(",", ":")).encode() + b"\n"
    if os.write(1, line) != len(line):
        raise OSError("the disk is full: a line was cut")


if __name__ == "__main__":
    try:
        main(sys.argv[1], float(sys.argv[2]), int(sys.argv[3]))
    except OSError:
        sys.exit(1)  # the disk is full: what was written stays, and nobody waits for more
