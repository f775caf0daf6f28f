"""Runs the analyzers: measure each trace where it is read, then reduce the partials."""
