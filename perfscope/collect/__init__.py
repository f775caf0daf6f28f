"""Merges the parts of a run, which hosts without a shared file system hold, into one folder."""
