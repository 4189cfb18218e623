"""Sizes as people type them, understood in one way or refused."""

import re
from dataclasses import dataclass
from fractions import Fraction
from typing import Final

from kv_api import ConfigError

_BYTES: Final[dict[str, int]] = {
    "B": 1,
    **{f"{letter}B": 1000**power for power, letter in enumerate("KMGT", 1)},
    "kB": 1000,
    **{f"{letter}iB": 1024**power for power, letter in enumerate("KMGT", 1)},
    **{f"{letter}i": 1024**power for power, letter in enumerate("KMGT", 1)},
}
_TOKENS: Final = ("tokens", "token", "tok")
_BLOCKS: Final = ("blocks", "block")
_COUNTS: Final = {"": 1, "k": 1000, "K": 1000, "M": 1000**2, "G": 1000**3}
_SIZE: Final = re.compile(r"\s*([0-9][0-9_]{0,99}(?:\.[0-9]{1,99})?(?:e[0-9]{1,2})?)\s*([A-Za-z ]*?)\s*")
"""Of so many digits that what is counted or shown of it later fits a float."""
_NUMBER: Final = re.compile("[0-9]{1,999}")

MOST_BYTES: Final = 1 << 40
"""Of a token: more than any model has, and with as many blocks as there may be a number that fits a float."""

_IN_BYTES: Final = "64GiB or 64GB"
NOTHING: Final = "none"
"""Where there may be none of something."""
EXPECTED: Final = f"20000blocks, 10Mtokens, {_IN_BYTES}"


@dataclass(frozen=True)
class Footprint:
    """What a block of a trace takes."""

    block_tokens: int
    bytes_per_token: int | None
    """None where no model was named: then nothing can be said in bytes."""

    def __post_init__(self) -> None:
        if self.bytes_per_token is not None:
            check_bytes(self.bytes_per_token, "bytes_per_token")

    @property
    def block_bytes(self) -> int | None:
        """Bytes of a block."""
        return None if self.bytes_per_token is None else self.block_tokens * self.bytes_per_token

    def bytes_of(self, blocks: float) -> int | None:
        """Bytes of some blocks."""
        return None if self.block_bytes is None else int(blocks * self.block_bytes)


def check_bytes(of_a_token: int, option: str) -> None:
    """See that it is what a token may take."""
    if not 1 <= of_a_token <= MOST_BYTES:
        raise ConfigError(f"{option}: expected 1 to {MOST_BYTES}, got {of_a_token}")


def parse_bytes(text: str, option: str) -> int:
    """A number of bytes."""
    number, unit = _split(text, option, _IN_BYTES)
    scale = _byte_scale(unit)
    if scale is None and _count_unit(unit)[1] is not None:
        raise ConfigError(f"{option} {text}: expected a size in bytes, for example {_IN_BYTES}")
    if scale is None:
        raise ConfigError(_problem(text, unit, option, f"for example {_IN_BYTES}"))
    return int(number * scale)


def parse_bytes_of_a_token(text: str, option: str) -> int:
    """A number of bytes, also without a unit."""
    size = int(text) if _NUMBER.fullmatch(text) else parse_bytes(text, option)
    check_bytes(size, option)
    return size


def parse_capacity(text: str, footprint: Footprint, option: str = "--capacity") -> int:
    """A number of blocks, from blocks, tokens or bytes; a part of a block holds nothing."""
    number, unit = _split(text, option)
    scale = _byte_scale(unit)
    if scale is not None:
        if footprint.block_bytes is None:
            raise ConfigError(
                f"{option} {text}: the bytes of a token are unknown; give --model or --bytes-per-token"
            )
        blocks = int(number * scale) // footprint.block_bytes
    else:
        prefix, kind = _count_unit(unit)
        if kind is None:
            raise ConfigError(_problem(text, unit, option, EXPECTED))
        count = int(number * _COUNTS[prefix])
        blocks = count if kind in _BLOCKS else count // footprint.block_tokens
    if blocks < 1:
        raise ConfigError(
            f"{option} {text}: less than one block of {footprint.block_tokens} tokens{_takes(footprint)}"
        )
    return blocks


def show_bytes(count: int) -> str:
    """Bytes for people, in powers of 1024."""
    size = float(count)
    for unit in ("B", "KiB", "MiB", "GiB"):
        if size < 1024:
            return f"{size:.0f} {unit}" if unit == "B" or size >= 100 else f"{size:.3g} {unit}"
        size /= 1024
    return f"{size:.3g} TiB" if size < 999.5 else f"{size:,.0f} TiB"  # which three digits would round to 1e+03


def show_count(count: float) -> str:
    """A count for people, in powers of 1000."""
    if count >= 9.995e14:
        return f"{count:.3g}"
    for limit, size, letter in ((9.995e11, 1e12, "T"), (9.995e8, 1e9, "G"), (9.995e5, 1e6, "M"), (1e4, 1e3, "k")):
        if count >= limit:
            return f"{count / size:.3g}{letter}"
    return f"{count:.0f}"


def counted(count: int, one: str, many: str) -> str:
    """So many of something, in the words for one of it or for many."""
    return f"{count:,} {one if count == 1 else many}"


def _split(text: str, option: str, expected: str = EXPECTED) -> tuple[Fraction, str]:
    match = _SIZE.fullmatch(text)
    if match is None:
        raise ConfigError(f"{option} {text}: expected a size such as {expected}")
    return Fraction(match[1].replace("_", "")), match[2]  # of a float, 1.001 thousands would be 1000


def _byte_scale(unit: str) -> int | None:
    """Exactly as spelled; in small letters if it is still clear what is meant."""
    if unit in _BYTES:
        return _BYTES[unit]
    spelled = {name.lower(): scale for name, scale in _BYTES.items()}
    return spelled.get(unit) if unit != "b" else None


def _count_unit(unit: str) -> tuple[str, str | None]:
    for kind in (*_TOKENS, *_BLOCKS):
        prefix = unit.removesuffix(kind).rstrip()
        if prefix != unit and prefix in _COUNTS:
            return prefix, kind
    return "", None


def _problem(text: str, unit: str, option: str, expected: str) -> str:
    letter = unit[:1].upper()
    choices = f"{letter}B (powers of 1000) or {letter}iB (powers of 1024)"
    if not unit:
        return f"{option} {text}: {text.strip()} what? Expected {expected}"
    if unit.upper() in ("K", "M", "G", "T"):
        return f"{option} {text}: {unit!r} can mean {choices}: say which"
    if unit[1:] in ("b", "ib", "bit") and letter in "KMGT":
        return f"{option} {text}: {unit!r} would be bits: say {choices}"
    return f"{option} {text}: unknown unit {unit!r}; expected {expected}"


def _takes(footprint: Footprint) -> str:
    size = footprint.block_bytes
    return "" if size is None else f", which takes {show_bytes(size)}"
