"""Runs of a scaling study: their logs, sizes and GPU samples."""
