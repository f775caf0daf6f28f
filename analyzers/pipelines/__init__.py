"""Pipeline bubbles, measured from traces: passes of micro-batches, their schedule, and the causes of idle time."""
