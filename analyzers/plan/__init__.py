"""Estimates of the memory and the duration of a training run, and what a run measured of both."""
