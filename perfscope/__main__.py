"""``python -m perfscope`` is the command ``perfscope``."""

from perfscope.search_path import put_own_modules_first

if __name__ == "__main__":
    put_own_modules_first()
    from perfscope.cli import main  # only now, so that nothing of the working folder is imported in its place

    main()
