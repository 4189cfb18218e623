"""Names of policies as people type them."""

from typing import Final

ALL_POLICIES: Final = ("lru", "arc", "s3fifo", "sieve")

_ALL: Final = "all"


def parse_policies(text: str) -> list[str]:
    """One name, or several with commas between them; ``all`` is each of them. Each is there once."""
    names = [name.strip() for name in text.split(",")]
    return list(dict.fromkeys(one for name in names for one in (ALL_POLICIES if name == _ALL else (name,))))
