"""Pipeline schedules as facts: the order of passes, closed forms, an event simulator, and drawings."""
