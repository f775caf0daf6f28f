"""Merges the parts of a run, which hosts without a shared file system hold, into one folder.

``parts`` copies each part beside the run, ``consistency`` checks that the parts belong to one run, ``clocks`` compares
the clocks of their hosts, and ``merge`` plans which file goes where before it moves any.
"""
