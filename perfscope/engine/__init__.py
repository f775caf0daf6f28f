"""Runs the analyzers: every trace is measured where it is read, then the partial results are reduced."""
