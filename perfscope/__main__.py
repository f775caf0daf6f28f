"""``python -m perfscope`` is the command ``perfscope``."""

import sys

#: No module's bytecode is larger.
_LARGEST_BYTECODE = 1 << 20

if __name__ == "__main__":
    # Python does not notice that a file was cut off, and later commands could not import the module.
    is_bytecode_off, sys.dont_write_bytecode = sys.dont_write_bytecode, True
    from perfscope.search_path import put_own_modules_first

    put_own_modules_first()
    import resource  # only now, so that nothing of the working folder is imported in its place

    is_cut_off = 0 <= resource.getrlimit(resource.RLIMIT_FSIZE)[0] < _LARGEST_BYTECODE
    sys.dont_write_bytecode = is_bytecode_off or is_cut_off
    from perfscope.cli import main

    main()
