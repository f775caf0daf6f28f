"""Traces of torch.profiler as typed tables."""
