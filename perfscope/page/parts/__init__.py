"""The parts of a page, one a module: each a function of an analysis."""
