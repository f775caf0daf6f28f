"""Samples every GPU of this node until the rank that started it ends.

Run by itself: ``python -I -S sampler.py FOLDER_OF_PYNVML HZ PID [full=BYTES]``. It writes lines of JSON. The
first line of each file describes the GPUs. In the others ``gpus`` has the values read at that moment, in the same
order::

    {"host", "wall_ns", "t_ns", "hz", "gpus": [{"uuid", "index", "name", "power_limit_mw", "mig", ...}]}

    {"t_ns": monotonic, "gpus": [{"power_mw", "sm_clock_mhz", "gpu_util_percent", "throttle", ...}]}

    {"t_ns", "lost": "GPU-..."}, {"t_ns", "sampler": {"cpu_ns", "rounds", "late"}}

A value that a GPU does not report is left out. Calls that take microseconds are made at the user's rate for an hour,
and then once a second. Counters are read once a second. A full file is compressed.
This file imports nothing of perfscope, because it runs without perfscope on its path.
"""

from __future__ import annotations

import contextlib
import gzip
import json
import math
import os
import select
import socket
import stat
import sys
import time
from collections.abc import Callable
from typing import Any

Values = dict[str, object]

_NS_PER_S = 1_000_000_000
#: A metric rests for so many times as long as it took to be read: each costs 5 % of a processor's time at most.
_SHORTEST_REST = 20
#: After an hour once a second is enough: a week of a node with eight GPUs is two gigabytes of lines then.
_FULL_RATE_NS = 3600 * _NS_PER_S
_COST_PERIOD_NS = 30 * _NS_PER_S
#: Bytes of a full file.
_FULL_BYTES = 4 << 20
_ALLOWED_FAILURES = 10
_LOST_ERRORS = ("GPU_IS_LOST", "RESET_REQUIRED", "GPU_NOT_FOUND", "UNINITIALIZED")
#: The sum over a GPU's NVLinks.
_ALL_LINKS = 0xFFFFFFFF
#: Names of the counters here and in NVML. They are counters, so that a sample that is missed loses nothing.
_COUNTERS = {
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
_SIGNED_TYPES = (4, 5)  # NVML_VALUE_TYPE_SIGNED_LONG_LONG and NVML_VALUE_TYPE_SIGNED_INT


class SampledGpu:
    """One GPU; it is lost where it fell off the bus, or MIG splits it. Failures of each metric are those in a row."""

    def __init__(self, handle: object, uuid: str) -> None:
        self.handle = handle
        self.uuid = uuid
        self.is_lost = False
        self.unsupported: set[str] = set()
        self.failures: dict[str, int] = {}


class Metric:
    """One kind of value: how the values of one GPU are read, how often, and when next."""

    def __init__(self, name: str, read: Callable[[SampledGpu], Values], period_ns: int) -> None:
        self.name = name
        self.read = read
        self.period_ns = period_ns
        self.due_ns = 0


class Output:
    """The standard output, and the compressed files that were full, where it is a file. ``head`` begins each file."""

    def __init__(self, full_bytes: int = _FULL_BYTES) -> None:
        self.head: Values = {}
        self._full_bytes = full_bytes
        self._bytes = 0

    def write(self, record: Values) -> None:
        """Append a line. Raises OSError: the disk is full or gone."""
        line = json.dumps(record, separators=(",", ":")).encode() + b"\n"
        if os.write(sys.stdout.fileno(), line) != len(line):
            raise OSError("the disk is full: a line was cut")
        self._bytes += len(line)

    def rotate_if_full(self, now: Values) -> None:
        """Compress what the file holds into HOST.N.jsonl.gz and begin again; where that fails, it goes on growing."""
        if self._bytes < self._full_bytes:
            return
        self._bytes = 0
        with contextlib.suppress(OSError):
            stdout = sys.stdout.fileno()
            if stat.S_ISREG(os.fstat(stdout).st_mode):
                _compress(os.readlink(f"/proc/self/fd/{stdout}"))
                os.lseek(stdout, 0, os.SEEK_SET)
                os.ftruncate(stdout, 0)  # a reader takes the compressed file in place of lines that begin alike
                self.write({**self.head, **now, "continues": True})


def _compress(path: str) -> None:
    stem, number = path.removesuffix(".jsonl"), 1
    while os.path.exists(f"{stem}.{number}.jsonl") or os.path.exists(f"{stem}.{number}.jsonl.gz"):
        number += 1
    unfinished = f"{stem}.{number}.tmp"
    try:
        with open(path, "rb") as file, open(unfinished, "wb") as packed:
            packed.write(gzip.compress(file.read()))
        os.replace(unfinished, f"{stem}.{number}.jsonl.gz")
    except OSError:
        with contextlib.suppress(OSError):
            os.unlink(unfinished)
        raise


class Nvml:
    """The calls of NVML that the sampler makes; ``pynvml`` itself has no types."""

    def __init__(self, pynvml: Any) -> None:
        self._pynvml = pynvml
        self.error: type[Exception] = pynvml.NVMLError
        numbered = [(name, getattr(pynvml, field, None), scope) for name, (field, scope) in _COUNTERS.items()]
        #: Name, NVML's number and scope of each counter that this pynvml has.
        self._counters = [counter for counter in numbered if counter[1] is not None]

    def find_devices(self) -> tuple[list[SampledGpu], list[Values]]:
        """Find the GPUs that answer, and describe them."""
        devices, descriptions = [], []
        for index in range(self._pynvml.nvmlDeviceGetCount()):
            try:
                handle = self._pynvml.nvmlDeviceGetHandleByIndex(index)
            except self.error:
                continue  # off the bus already, or another job's
            description = {"index": index, **self._describe_gpu(handle)}
            device = SampledGpu(handle, str(description.get("uuid", "")))
            device.is_lost = description.get("mig") is True  # its values are those of several devices
            devices.append(device)
            descriptions.append(description)
        return devices, descriptions

    def read_driver_version(self) -> Values:
        """A field of the first record."""
        return self._read_supported({"driver": self._pynvml.nvmlSystemGetDriverVersion})

    def is_lost(self, error: Exception) -> bool:
        """Whether NVML says that a GPU is gone."""
        return getattr(error, "value", None) in [
            getattr(self._pynvml, f"NVML_ERROR_{name}", None) for name in _LOST_ERRORS
        ]

    def make_metrics(self, fast_period_ns: int) -> list[Metric]:
        """Make every metric; power, which is integrated over time, is read first, nearest to the time of the line."""
        pynvml = self._pynvml
        fast: dict[str, Callable[[SampledGpu], Values]] = {
            "power": lambda device: {"power_mw": pynvml.nvmlDeviceGetPowerUsage(device.handle)},
            "throttle": self._read_throttle_reasons,
            "clock": lambda device: {
                "sm_clock_mhz": pynvml.nvmlDeviceGetClockInfo(device.handle, pynvml.NVML_CLOCK_SM)
            },
            "utilisation": lambda device: {"gpu_util_percent": pynvml.nvmlDeviceGetUtilizationRates(device.handle).gpu},
            "memory": lambda device: {"memory_used_bytes": pynvml.nvmlDeviceGetMemoryInfo(device.handle).used},
            "temperature": lambda device: {
                "temperature_c": pynvml.nvmlDeviceGetTemperature(device.handle, pynvml.NVML_TEMPERATURE_GPU)
            },
        }
        return [
            *(Metric(name, read, fast_period_ns) for name, read in fast.items()),
            Metric("counters", self._read_counters, max(fast_period_ns, _NS_PER_S)),
        ]

    def _describe_gpu(self, handle: object) -> Values:
        pynvml = self._pynvml
        return self._read_supported(
            {
                "uuid": lambda: pynvml.nvmlDeviceGetUUID(handle),
                "name": lambda: pynvml.nvmlDeviceGetName(handle),
                "power_limit_mw": lambda: pynvml.nvmlDeviceGetEnforcedPowerLimit(handle),
                "power_limit_default_mw": lambda: pynvml.nvmlDeviceGetPowerManagementDefaultLimit(handle),
                "memory_total_bytes": lambda: pynvml.nvmlDeviceGetMemoryInfo(handle).total,
                "sm_clock_max_mhz": lambda: pynvml.nvmlDeviceGetMaxClockInfo(handle, pynvml.NVML_CLOCK_SM),
                "mig": lambda: pynvml.nvmlDeviceGetMigMode(handle)[0] == 1,
            }
        )

    def _read_supported(self, calls: dict[str, Callable[[], object]]) -> Values:
        """The results of the calls that this GPU, driver and pynvml support."""
        values: Values = {}
        for name, call in calls.items():
            try:
                value = call()
            except (AttributeError, self.error):
                continue
            values[name] = value.decode() if isinstance(value, bytes) else value
        return values

    def _read_throttle_reasons(self, device: SampledGpu) -> Values:
        """By the older name of the call, which every driver has."""
        read_reasons = getattr(self._pynvml, "nvmlDeviceGetCurrentClocksThrottleReasons", None)
        return {"throttle": (read_reasons or self._pynvml.nvmlDeviceGetCurrentClocksEventReasons)(device.handle)}

    def _read_counters(self, device: SampledGpu) -> Values:
        fields = [(number, scope) for _, number, scope in self._counters]
        results = self._pynvml.nvmlDeviceGetFieldValues(device.handle, fields)
        return {
            name: result.value.sllVal if result.valueType in _SIGNED_TYPES else result.value.ullVal
            for (name, _, _), result in zip(self._counters, results, strict=True)
            if result.nvmlReturn == 0 and result.valueType != 0
        }


def watch_process(pid: int) -> Callable[[float], bool]:
    """A function that waits some seconds, unless a process ends, and says whether that goes on; it is no child."""
    try:
        descriptor = os.pidfd_open(pid)
    except (AttributeError, OSError):  # an old kernel, or it has ended

        def wait(seconds: float) -> bool:
            time.sleep(seconds)
            return os.path.exists(f"/proc/{pid}")

        return wait
    ended = select.poll()
    ended.register(descriptor, select.POLLIN)
    return lambda seconds: not ended.poll(math.ceil(seconds * 1000))


def main(pynvml_folder: str, hz: float, starter: int, output: Output) -> None:
    """Sample until the process that started this one has ended."""
    goes_on = watch_process(starter)
    sys.path.append(pynvml_folder)
    try:
        import pynvml  # it is on the path only now

        pynvml.nvmlInit()
    except Exception as error:  # noqa: BLE001 - whatever NVML lacks here is reported, and training goes on
        output.write({"note": f"NVML is not sampled: {error}"})
        return
    nvml = Nvml(pynvml)
    devices, descriptions = nvml.find_devices()
    output.head = {"host": socket.gethostname(), "hz": hz, **nvml.read_driver_version(), "gpus": descriptions}
    output.write(output.head | _now())
    if not devices:
        output.write({"note": "NVML is not sampled: it finds no GPU"})
        return
    _sample_while(goes_on, nvml, devices, nvml.make_metrics(int(_NS_PER_S / hz)), output)


def _now() -> Values:
    return {"wall_ns": time.time_ns(), "t_ns": time.monotonic_ns()}


def _sample_while(
    goes_on: Callable[[float], bool], nvml: Nvml, devices: list[SampledGpu], metrics: list[Metric], output: Output
) -> None:
    rounds, late_rounds, fastest = 0, 0, metrics[0]
    early_ns = fastest.period_ns // 4
    cost_due_ns = time.monotonic_ns() + _COST_PERIOD_NS
    full_rate_until_ns = time.monotonic_ns() + _FULL_RATE_NS
    rest_s = 0.0
    while goes_on(rest_s):
        began_ns = time.monotonic_ns()
        late_rounds += fastest.due_ns > 0 and began_ns > fastest.due_ns + fastest.period_ns
        values: list[Values] = [{} for _ in devices]
        notes: list[Values] = []
        for metric in metrics:
            if metric.due_ns <= began_ns + early_ns:
                read_ns = time.monotonic_ns()
                notes += _read_metric(nvml, metric, devices, values)
                rest_ns = _SHORTEST_REST * (time.monotonic_ns() - read_ns)
                # From round to round without drift; it may begin a little early, so that it still falls into a round
                # of another metric when rounds are an integer number of periods apart.
                next_ns = max(metric.due_ns + metric.period_ns, began_ns + metric.period_ns // 2)
                metric.due_ns = max(next_ns, read_ns + rest_ns)
        output.write({"t_ns": began_ns, "gpus": values})
        rounds += 1
        if began_ns >= cost_due_ns:
            notes.append({"sampler": {"cpu_ns": time.process_time_ns(), "rounds": rounds, "late": late_rounds}})
            cost_due_ns += _COST_PERIOD_NS
        for note in notes:
            output.write({"t_ns": began_ns, **note})
        if began_ns >= full_rate_until_ns:
            for metric in metrics:
                metric.period_ns = max(metric.period_ns, _NS_PER_S)
        output.rotate_if_full(_now())
        due_ns = min(metric.due_ns for metric in metrics)
        rest_s = max(0.0, (due_ns - time.monotonic_ns()) / _NS_PER_S)


def _read_metric(nvml: Nvml, metric: Metric, devices: list[SampledGpu], values: list[Values]) -> list[Values]:
    """Read one metric of every GPU into ``values``; returns notes."""
    notes: list[Values] = []
    for device, device_values in zip(devices, values, strict=True):
        if device.is_lost or metric.name in device.unsupported:
            continue
        try:
            device_values.update(metric.read(device))
            device.failures.pop(metric.name, None)
        except AttributeError:  # this pynvml has no such call
            device.unsupported.add(metric.name)
        except nvml.error as error:
            failures = device.failures[metric.name] = device.failures.get(metric.name, 0) + 1
            if nvml.is_lost(error):
                device.is_lost = True
                notes.append({"lost": device.uuid})
            elif failures >= _ALLOWED_FAILURES:
                device.unsupported.add(metric.name)
    return notes


if __name__ == "__main__":
    _full = [int(word.partition("=")[2]) for word in sys.argv if word.startswith("full=")]
    try:
        main(sys.argv[1], float(sys.argv[2]), int(sys.argv[3]), Output(*_full))
    except OSError:
        sys.exit(1)  # the disk is full: the lines written so far stay
