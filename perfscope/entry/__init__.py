"""The start of the command ``perfscope``, installed as ``perfscope_toolkit``.

An unrelated project on the package index installs a module that is also named ``perfscope``. This entry has a name of
its own, so that it still runs, and can say so, where the other one comes first.
"""

import resource
import sys


def main() -> None:
    """Run the command line, or name the foreign module that Python finds instead."""
    if resource.getrlimit(resource.RLIMIT_FSIZE)[0] != resource.RLIM_INFINITY:
        sys.dont_write_bytecode = True  # below ``ulimit -f`` Python would keep cut files, and never import them again
    import perfscope  # here, so that this function can say so where the import finds another project

    if getattr(perfscope, "DISTRIBUTION", None) != "perfscope-toolkit":
        origin = getattr(perfscope, "__file__", None) or "an unknown location"
        sys.stderr.write(
            f"perfscope: the module 'perfscope' that Python finds is another project's, at {origin}.\n"
            "  hint: uninstall the distribution 'perfscope' or take its folder off PYTHONPATH, "
            "then reinstall perfscope-toolkit.\n"
        )
        raise SystemExit(1)
    from perfscope.search_path import put_own_modules_first  # only now is it known to be ours

    put_own_modules_first()
    from perfscope.cli import main as run  # only now, so that nothing of the user's is imported in its place

    run()
