"""One command a module or package, with a function of the same name; ``report`` is an app of such functions.

Each reads its options, calls sources and analyzers, and returns an Outcome; ``cli`` renders and prints it. A package
declares its groups of options in ``options``; groups that several commands share are in the package ``options``.
"""
