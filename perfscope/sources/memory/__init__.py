"""Histories of torch's allocator: those that the hooks write, and snapshots of torch. No code of a file runs."""
