"""Trains a model by many strategies under ``perfscope profile``, and compares what was measured."""
