"""``python -m perfscope`` is the command ``perfscope``."""

if __name__ == "__main__":
    from perfscope.search_path import put_own_modules_first

    put_own_modules_first()
    from perfscope.cli import main  # only now, so that nothing of the working folder is imported in its place

    main()
