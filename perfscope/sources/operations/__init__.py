"""Readers of the operations of whole training jobs."""
