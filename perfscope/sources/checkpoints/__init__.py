"""Checkpoints as tables of files; no code of a file runs and no tensor is read."""
