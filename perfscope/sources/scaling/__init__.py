"""Folders of runs as scaling studies."""
