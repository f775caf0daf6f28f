"""Files behind URLs: object stores and other file systems that fsspec opens."""
