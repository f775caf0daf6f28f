"""The types of perfscope's JSON: what ``--format json`` prints and what ``data`` of a result is, key by key.

Units are in the names: ``_ns`` integers in nanoseconds, ``_us`` microseconds, ``_s`` seconds, ``_bytes`` bytes, ``_w``
watts, ``_j`` joules. Shares are fractions of 1. None is a value that does not exist; notes, warnings and reasons say
why. The tests compare these types with the JSON of the runs and traces in ``fixtures/``.
"""
