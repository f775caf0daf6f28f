"""No GPU."""


def is_available():
    """Whether there is one."""
    return False


def is_initialized():
    """Whether one is in use."""
    return False
