"""Activity of tensor cores and multiprocessors between two samples of NVML's GPM (Hopper and newer).

GPM's values are means over the time between two samples, so that one sample a second misses nothing. This file is
loaded by its path into the sampler's process, and imports nothing of perfscope.
"""

from __future__ import annotations

import time
from typing import Any

Values = dict[str, object]

#: Names here and in NVML; NVML's values are percent.
METRICS = {
    "tensor_activity_ppm": "NVML_GPM_METRIC_ANY_TENSOR_UTIL",
    "sm_activity_ppm": "NVML_GPM_METRIC_SM_UTIL",
    "sm_occupancy_ppm": "NVML_GPM_METRIC_SM_OCCUPANCY",
    "dram_activity_ppm": "NVML_GPM_METRIC_DRAM_BW_UTIL",
}
_PPM_PER_PERCENT = 10_000


class Gpm:
    """Samples of GPM: two for each GPU, which take turns."""

    def __init__(self, pynvml: Any) -> None:
        self._pynvml = pynvml
        self._samples: dict[str, tuple[Any, Any, int]] = {}

    def read(self, device: Any) -> Values:
        """The means since the last call, for a device with ``handle``, ``uuid`` and ``unsupported``; first nothing.

        Raises:
            pynvml.NVMLError: NVML refuses it.
        """
        pynvml = self._pynvml
        pair = self._samples.get(device.uuid)
        if pair is None:
            if device.mig_handles or not pynvml.nvmlGpmQueryDeviceSupport(device.handle).isSupportedDevice:
                device.unsupported.add("gpm")
                return {"gpm": "not supported"}
            old, new = pynvml.nvmlGpmSampleAlloc(), pynvml.nvmlGpmSampleAlloc()
            pynvml.nvmlGpmSampleGet(device.handle, old)
            self._samples[device.uuid] = old, new, time.monotonic_ns()
            return {}
        old, new, from_ns = pair
        pynvml.nvmlGpmSampleGet(device.handle, new)
        to_ns = time.monotonic_ns()
        self._samples[device.uuid] = new, old, to_ns
        values = self._compare(old, new)
        return {**values, "gpm_from_ns": from_ns, "gpm_to_ns": to_ns} if values else {}

    def _compare(self, old: Any, new: Any) -> Values:
        """The metrics between two samples, as far as this GPU has them."""
        pynvml = self._pynvml
        request = pynvml.c_nvmlGpmMetricsGet_t()
        request.version = pynvml.NVML_GPM_METRICS_GET_VERSION
        request.numMetrics, request.sample1, request.sample2 = len(METRICS), old, new
        for index, metric in enumerate(METRICS.values()):
            request.metrics[index].metricId = getattr(pynvml, metric)
        pynvml.nvmlGpmMetricsGet(request)
        results = zip(METRICS, request.metrics, strict=False)
        return {name: round(_PPM_PER_PERCENT * each.value) for name, each in results if each.nvmlReturn == 0}
