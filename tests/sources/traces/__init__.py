"""Traces: reading them, and what is computed from them."""
