"""Logs messages under ``kv_offload``. ``logging`` is imported at the first message."""


def warn(message: str, *args: object) -> None:
    """Log what went wrong and was dealt with, in the name of the caller."""
    from logging import getLogger

    getLogger("kv_offload").warning(message, *args, stacklevel=2)


def error(message: str, *args: object) -> None:
    """Log what somebody has to do something about, in the name of the caller."""
    from logging import getLogger

    getLogger("kv_offload").error(message, *args, stacklevel=2)
