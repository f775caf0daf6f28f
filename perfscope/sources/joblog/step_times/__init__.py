"""Step times that no record states: from clocks, dates, timers, progress bars, and the run time at the end."""
