"""Replays of a profiled step: its execution graph over all ranks, what it waited for, and what changes would save."""
