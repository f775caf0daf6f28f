"""The NVML sampler against a library that behaves as told, and what is computed from its samples."""
