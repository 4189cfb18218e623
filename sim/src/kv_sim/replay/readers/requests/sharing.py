"""A stated assumption for traces without ids: which requests begin with which shared prefix, drawn from a seed.

A share of the requests begins with one of several shared prefixes of the same length; the n-th most popular prefix
has a weight of 1 / n^skew. The rest of each prompt is shared with no other request.
"""

from bisect import bisect_left
from dataclasses import dataclass, fields
from itertools import accumulate
from random import Random

from kv_api import ConfigError
from kv_api.errors import unknown_name

BLOCK_TOKENS = 64
"""The block size for traces whose format has no blocks."""


@dataclass(frozen=True)
class Sharing:
    """The assumption about the prefixes that requests share."""

    prefixes: int = 100
    """How many shared prefixes there are."""
    tokens: int = 1024
    """How long each of them is."""
    skew: float = 1.0
    """How much more popular the first prefixes are; 0: all are equally popular."""
    share: float = 0.8
    """The share of requests that begin with one."""

    def __str__(self) -> str:
        return (
            f"{self.share:.0%} of requests begin with one of {self.prefixes} prefixes of {self.tokens} tokens, "
            f"the n-th with weight 1/n^{self.skew:g}"
        )


def parse_sharing(text: str) -> Sharing:
    """``none`` or ``zipf`` with settings: ``zipf:prefixes=50,tokens=2048,skew=1,share=0.5``."""
    kind, _, settings = text.partition(":")
    if kind == "none" and not settings:
        return Sharing(1, 0, 0.0, 0.0)
    if kind != "zipf":
        raise ConfigError(
            f"--assume-sharing {text}: expected 'none' or 'zipf[:prefixes=100,tokens=1024,skew=1,share=0.8]'"
        )
    values: dict[str, float] = {}
    known = [field.name for field in fields(Sharing)]
    for setting in settings.split(",") if settings else ():
        name, _, value = setting.partition("=")
        if name not in known:
            raise ConfigError(f"--assume-sharing {text}: {unknown_name('setting', name, known)}")
        values[name] = _number(text, name, value)
    whole = {name: int(value) for name, value in values.items() if name in ("prefixes", "tokens")}
    made = Sharing(**{**values, **whole})  # type: ignore[arg-type]
    if made.prefixes < 1 or made.share > 1:
        raise ConfigError(f"--assume-sharing {text}: prefixes is at least 1, share at most 1")
    return made


def _number(text: str, name: str, value: str) -> float:
    try:
        number = float(value)
    except ValueError:
        number = -1.0
    if not 0 <= number < 1e9 or (name in ("prefixes", "tokens") and not number.is_integer()):
        raise ConfigError(f"--assume-sharing {text}: {name}: expected a number of at least 0, got {value!r}")
    return number


class Sharer:
    """Draws ids for requests that have none."""

    def __init__(self, sharing: Sharing, seed: int, block_tokens: int) -> None:
        self._sharing = sharing
        self._random = Random(seed)
        self._block_tokens = block_tokens
        weights = (1 / (rank**sharing.skew) for rank in range(1, sharing.prefixes + 1))
        self._weights = list(accumulate(weights))
        self._count = 0

    def ids_for(self, input_tokens: int) -> list[str]:
        """Ids for the next request, one for each block; to be chained."""
        self._count += 1
        random, size = self._random, self._block_tokens
        shared = random.random() < self._sharing.share
        drawn = random.random() * self._weights[-1]
        rank = bisect_left(self._weights, drawn)
        common = min(self._sharing.tokens, input_tokens) // size if shared else 0
        blocks = -(-input_tokens // size)
        return [f"prefix {rank} {i}" if i < common else f"own {self._count} {i}" for i in range(blocks)]


def describe(sharing: Sharing, seed: int) -> str:
    """A note for the report."""
    if not sharing.share:
        return "the trace has no ids; assumed: nothing is shared (--assume-sharing none)"
    return f"the trace has no ids; assumed, seed {seed}: {sharing}"
