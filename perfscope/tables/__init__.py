"""Typed tables between sources and analyzers: one NumPy column a field, integers for time."""
