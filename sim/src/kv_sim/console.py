"""What every command of ``kv-sim`` has: its exit codes, and how it speaks."""

FINE, FAILED, MISUSED, BROKEN, INTERRUPTED = 0, 1, 2, 3, 130


def say(text: str) -> None:
    """Print a line at once."""
    print(text, flush=True)
