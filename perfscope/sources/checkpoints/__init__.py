"""Checkpoints as tables of files; nothing is unpickled and no tensor is read."""
