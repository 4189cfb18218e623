"""Prompts as text: from characters to tokens, and from tokens to blocks.

Without a tokenizer, four characters count as a token. A block's id is then its characters, and since ids are
chained, prompts share blocks as far as their texts agree. With a tokenizer (a model's ``tokenizer.json``, read by
the package ``tokenizers``) a block's id is its tokens. Each piece of a prompt, such as a chat's message after its
role, is tokenized separately. Chat templates put marks between pieces anyway, and a piece comes again in the next
turn, so its tokens are cached.
"""

import importlib
from collections.abc import Iterator, Sequence
from fractions import Fraction
from functools import lru_cache
from pathlib import Path
from typing import Any, Final, Protocol, cast

from kv_api import ConfigError
from kv_sim.replay.readers.chats.asked import SALT
from kv_sim.replay.readers.chats.parts import has_media
from kv_sim.replay.readers.record import Id, Record
from kv_sim.replay.units import counted

CHARACTERS_PER_TOKEN: Final = 4
BLOCK_TOKENS: Final = 16
ASSUMED: Final = "four characters are taken for a token"
FILE: Final = "tokenizer.json"

_ALIKE: Final = Fraction(5, 4)
"""Two counts whose ratio is below this count as equal."""

_REMEMBERED: Final = 4096
"""How many pieces' tokens are cached, for conversations that continue."""

_MANY: Final = 10
"""So many equal prompts are no accident."""
_RUN: Final = 8
"""So many equal token ids at an end of a prompt may be padding."""

_KEPT: Final = 1 << 17
"""How many block ids are kept as single objects: those of twenty prompts of 100,000 tokens."""


class Cutter(Protocol):
    """Cuts text into tokens."""

    said: str
    """How it cuts, for the notes of a trace."""

    def blocks_of(self, pieces: Sequence[str], block_tokens: int) -> tuple[int, list[Id]]:
        """How many tokens a prompt has, and the ids of their blocks."""

    def tokens_of(self, text: str) -> int:
        """How many tokens a text has."""


class FourCharacters:
    """Counts every four characters as a token, without a tokenizer."""

    said = ASSUMED

    def blocks_of(self, pieces: Sequence[str], block_tokens: int) -> tuple[int, list[Id]]:
        """The blocks by characters: a block's id is its text."""
        prompt, step = "".join(pieces), CHARACTERS_PER_TOKEN * block_tokens
        return self.tokens_of(prompt), [prompt[start : start + step] for start in range(0, len(prompt), step)]

    def tokens_of(self, text: str) -> int:
        """A quarter of its characters, rounded up."""
        return -(-len(text) // CHARACTERS_PER_TOKEN)


class ByTokenizer:
    """Cuts with a model's tokenizer, given as a file or its folder."""

    def __init__(self, given: str | Path) -> None:
        path = Path(given) / FILE if Path(given).is_dir() else Path(given)
        if not path.is_file():
            raise ConfigError(
                f"--tokenizer {path}: there is no such file; it is the {FILE} beside a model's weights"
            )
        try:
            library = importlib.import_module("tokenizers")
        except ImportError:
            needed = "--tokenizer needs the package tokenizers: pip install 'kv-sim[tokenizer]'"
            raise ConfigError(needed) from None
        try:
            self._tokenizer: Any = library.Tokenizer.from_file(str(path))
        except Exception as error:  # noqa: BLE001 - it raises no other class
            raise ConfigError(f"--tokenizer {path}: {error}") from None
        self._tokenizer.no_truncation()  # some tokenizers' files truncate or pad texts
        self._tokenizer.no_padding()
        self.said = f"tokens are those of {path}"
        self._ids_of = lru_cache(_REMEMBERED)(self._cut)

    def _cut(self, text: str) -> list[int]:
        try:
            text.encode()
        except UnicodeEncodeError:  # half a character, as JavaScript leaves where it cuts a text
            text = text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")
        return cast("list[int]", self._tokenizer.encode(text, add_special_tokens=False).ids)

    def blocks_of(self, pieces: Sequence[str], block_tokens: int) -> tuple[int, list[Id]]:
        """The blocks by tokens, with each piece tokenized separately."""
        return blocks_of_tokens([one for piece in pieces for one in self._ids_of(piece)], block_tokens)

    def tokens_of(self, text: str) -> int:
        """The number of tokens of a text."""
        return len(self._ids_of(text))


def blocks_of_tokens(tokens: Sequence[int], block_tokens: int) -> tuple[int, list[Id]]:
    """The number of tokens and the blocks of a prompt that is given as token ids."""
    parts = (tokens[start : start + block_tokens] for start in range(0, len(tokens), block_tokens))
    return len(tokens), [repr(list(part)) for part in parts]


def _is_role(piece: str) -> bool:
    """Whether a piece of a prompt is only a role, or blank, without text."""
    return (piece.startswith("<|") and piece.endswith("|>")) or not piece or piece.isspace()


def _is_padded(tokens: Sequence[int] | None) -> bool:
    """Whether a prompt seems to be filled up, at either end, to the length of others."""
    if not tokens or len(tokens) <= _RUN:
        return False
    ends = (end for end in (tokens[:_RUN], tokens[-_RUN:]) if len(set(end)) == 1)
    return any(one[0] != tokens[len(tokens) // 2] for one in ends) or tokens[0] < 0 or tokens[-1] < 0


class Text:
    """Cuts a trace's prompts into tokens and blocks, and counts its answers' tokens."""

    def __init__(self, tokenizer: str | Path | None, block_tokens: int | None) -> None:
        self._cutter: Cutter = FourCharacters() if tokenizer is None else ByTokenizer(tokenizer)
        self._block_tokens = BLOCK_TOKENS if block_tokens is None else block_tokens
        self._counted = self._told = self._depicted = self._silent = 0
        self._prompts = self._padded = 0
        self._first: list[Id] | None = None
        """The blocks of the first prompt, as long as all have the same."""
        self._begins: set[Id] = set()
        """The first blocks of prompts, as long as no two have the same."""
        self._salts: set[str | None] = set()

    @property
    def said(self) -> str:
        """How text is cut, for the notes."""
        return self._cutter.said

    def notes(self) -> Iterator[str]:
        """Notes: on prompts whose length the log counted differently, on salts, empty prompts and media."""
        counted_here = max(1, self._counted)
        if self._told and not counted_here / _ALIKE < self._told < counted_here * _ALIKE:
            yield (
                f"usage says {self._told:,} prompt tokens where {self._counted:,} are counted here: images have "
                "no text, and a model's template and tokenizer their own idea (--tokenizer)"
            )
        if len(self._salts) > 1:
            salts = f"{len(self._salts):,} different salts ({SALT})"
            yield f"prompts have {salts}, and share blocks only with prompts of the same salt"
        if self._silent:
            requests = counted(self._silent, "request says", "requests say")
            yield f"{requests} nothing, or nothing but roles: did the log leave out the text?"
        if self._first is not None and self._prompts >= _MANY:
            yield f"all {self._prompts:,} prompts are the same: did the log leave out what they say?"
        if len(self._begins) == self._prompts >= _MANY:
            yield (
                f"no two of {self._prompts:,} prompts begin alike: has each all that a model was asked, with what "
                "the system told it and what was said before?"
            )
        if self._padded and 2 * self._padded >= self._prompts:
            requests = counted(
                self._padded, "prompt of token ids begins or ends", "prompts of token ids begin or end"
            )
            yield (
                f"{requests} with one id over and over, or with one below 0: is that padding? It counts, and in "
                "front of prompts of several lengths it hides what they share"
            )
        if self._depicted:
            requests = counted(
                self._depicted, "request has images, sounds or files", "requests have images, sounds or files"
            )
            yield f"{requests}, each of which counts as some characters, and no usage tells how many tokens it had"

    def cut(self, record: Record) -> None:
        """Set a record's prompt length, block ids and answer length from its text or token ids."""
        if record.tokens is not None:
            record.input_tokens, ids = blocks_of_tokens(record.tokens, self._block_tokens)
        elif record.text is not None:
            record.input_tokens, ids = self._cutter.blocks_of(record.text, self._block_tokens)
        else:
            return
        self._salts.add(record.salt)
        if record.salt is not None and ids:
            ids = [f"{record.salt} {ids[0]}", *ids[1:]]
        record.ids = list(map(_kept, ids))
        record.block_tokens = self._block_tokens
        self._silent += all(map(_is_role, record.text or ())) and not record.tokens
        self._padded += _is_padded(record.tokens)
        self._first = record.ids if not self._prompts or self._first == record.ids else None
        if record.ids and len(self._begins) == self._prompts:
            self._begins.add(record.ids[0])
        self._prompts += 1
        if record.told_tokens is not None:
            self._counted += record.input_tokens
            self._told += record.told_tokens
        elif record.text is not None:
            self._depicted += any(map(has_media, record.text))
        if record.answer is not None:
            record.output_tokens = self._cutter.tokens_of(record.answer)


@lru_cache(_KEPT)
def _kept(one: Id) -> Id:
    """One object for equal ids, since many prompts are held at once and those of a conversation begin alike."""
    return one
