"""Wrappers around frameworks, one module a framework."""
