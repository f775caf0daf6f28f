"""Blocks of a long log, split into columns of plain lines and the rest, by one process or by several."""
