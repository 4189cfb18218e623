"""What is logged, under ``kv_p2p``, and how an address is written. ``logging`` comes when something is said."""


def place_of(host: str, port: int) -> str:
    """An address as people write it."""
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def warn(message: str, *args: object) -> None:
    """Log what went wrong and was dealt with, in the name of the caller."""
    from logging import getLogger

    getLogger("kv_p2p").warning(message, *args, stacklevel=2)
