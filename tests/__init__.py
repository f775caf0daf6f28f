"""Claims about perfscope, each on a case that a reader can check by hand."""
