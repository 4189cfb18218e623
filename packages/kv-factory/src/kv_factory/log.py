"""What is logged, under ``kv_factory``. ``logging`` is imported when there is something to say."""


def info(message: str, *args: object) -> None:
    """Log what happened, in the name of the caller."""
    from logging import getLogger

    getLogger("kv_factory").info(message, *args, stacklevel=2)
