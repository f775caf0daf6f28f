"""Merges the parts of a run, which hosts without a shared file system hold, into one folder.

``parts`` copies each part beside the run, and ``merge`` checks that they belong to one run before it moves any file.
"""
