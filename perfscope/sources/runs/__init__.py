"""The files of a run's folder as typed tables."""
