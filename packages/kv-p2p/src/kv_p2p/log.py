"""What is logged, under ``kv_p2p``. ``logging`` is imported when there is something to say."""


def warn(message: str, *args: object) -> None:
    """Log what went wrong and was dealt with, in the name of the caller."""
    from logging import getLogger

    getLogger("kv_p2p").warning(message, *args, stacklevel=2)
