"""Logs warnings under ``kv_p2p``, and writes addresses. ``logging`` is imported at the first warning."""


def place_of(host: str, port: int) -> str:
    """An address as text."""
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def warn(message: str, *args: object) -> None:
    """Log a problem that was handled; the log record names the caller's place in the code."""
    from logging import getLogger

    getLogger("kv_p2p").warning(message, *args, stacklevel=2)
