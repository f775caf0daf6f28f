"""Hooks around frameworks: one file for each entry of the table in ``perfscope.frameworks``.

Beside them, ``wrapping`` puts a hook around a function, and ``optimizer_steps`` reports steps of nested optimizers.
"""
