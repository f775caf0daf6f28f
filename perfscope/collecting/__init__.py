"""Brings the parts of a run that hosts without a shared file system hold together into one folder.

``fetching`` copies each part beside the run, ``agreement`` checks that the parts are of one run, ``placing`` decides
what goes where without writing, and then writes.
"""
