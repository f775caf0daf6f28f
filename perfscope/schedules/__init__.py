"""Pipeline schedules as facts: their order of work, their closed forms, an event simulator and two ways to draw one."""
