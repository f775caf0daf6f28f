"""Samples of NVML, taken by a process of its own."""
