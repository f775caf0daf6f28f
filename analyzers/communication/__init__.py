"""Collective calls of each rank, matched across ranks, and the axis of parallelism that they serve."""
