"""``python -m perfscope`` is the command ``perfscope``."""

from perfscope.cli import main

if __name__ == "__main__":
    main()
