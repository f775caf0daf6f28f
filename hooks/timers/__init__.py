"""Timers of micro-batch passes and of checkpoint saves."""
