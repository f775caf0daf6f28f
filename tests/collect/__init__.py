"""Runs over several hosts, and how their parts come together."""
