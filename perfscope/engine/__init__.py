"""Runs the analyzers of the registry: each trace is measured where it is read, then the partial results are reduced."""
