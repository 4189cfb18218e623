"""``RequestSpec``: the description of a request, small enough for a schedule file, and its prompt.

A *session* is a request that stops more than once: it pauses, and continues with a longer prompt, its next *turn*.
"""

from dataclasses import asdict, dataclass, field
from functools import cached_property
from typing import Any, Final

from kv_sim.memory.content import Image, hash_text, mix

FIRST_TOKENS: Final = 40_000
"""How many conversations have different first tokens."""


@dataclass(frozen=True)
class Turn:
    """The next input of a session that has stopped; requests of one conversation get the same tokens."""

    tokens: int
    output_tokens: int
    max_tokens: int


@dataclass(frozen=True)
class RequestSpec:
    """A complete description of a request, small enough for a bug report."""

    request_id: str
    conversation: int
    """Requests of one conversation share its tokens, up to the shorter one. Two conversations differ only in their
    first token: the same tokens follow, at the same positions, after another prefix."""
    shared_tokens: int
    own_tokens: int
    """Tokens of the prompt after those of the conversation, which no other request has."""
    output_tokens: int
    """How many tokens it samples before it stops."""
    max_tokens: int
    """The limit of output tokens that the engine knows."""
    salt: str | None = None
    adapter: str | None = None
    skip_reading_prefix_cache: bool = False
    image: str | None = None
    """Not None: one token of its prompt is the placeholder of this image. The token is the same without an
    image."""
    image_at: int = 0
    """The position of that token. Beyond the prompt there is no image."""
    turns: tuple[Turn, ...] | None = None
    """Not None: it is a session with these turns after the first. After the last turn its end arrives."""
    own_of: str | None = None
    """Not None: it has the own tokens of this other request, which it continues at another engine."""
    kv_transfer_params: Any = field(default=None, hash=False)
    """The client's parameters, which may be anything. An object overrides keys of the router's; any other value
    replaces the router's object."""

    @classmethod
    def from_json(cls, values: dict[str, Any]) -> "RequestSpec":
        """The inverse of ``to_json``."""
        turns = values.get("turns")
        return cls(**{**values, "turns": None if turns is None else tuple(Turn(**turn) for turn in turns)})

    def to_json(self) -> dict[str, Any]:
        """Plain values for a schedule file. Rare fields are left out if they have their defaults."""
        values = asdict(self)
        turns = values.pop("turns")
        for rare in ("own_of", "kv_transfer_params", "image"):
            if values[rare] is None:
                del values[rare]
        if "image" not in values:
            del values["image_at"]
        return values if turns is None else {**values, "turns": list(turns)}

    @cached_property
    def prompt(self) -> tuple[int, ...]:
        """The tokens of the prompt."""
        name = hash_text(self.own_of or self.request_id)
        alike, number = divmod(self.conversation, FIRST_TOKENS)
        first = [3000 + number] if self.shared_tokens else []
        shared = [mix(alike << 32 | position) % 997 for position in range(1, self.shared_tokens)]
        own = [1000 + mix(name ^ position) % 997 for position in range(self.own_tokens)]
        return tuple(first + shared + own)

    @property
    def seen(self) -> Image | None:
        """The image in its prompt."""
        has_image = self.image is not None and self.image_at < len(self.prompt)
        return Image(self.image, self.image_at) if has_image and self.image is not None else None

    @property
    def total_tokens(self) -> int:
        """How many tokens it can have in all.

        The last sampled token of a turn is dropped if another turn follows.
        """
        first = self.shared_tokens + self.own_tokens + self.output_tokens
        return first + sum(turn.tokens + turn.output_tokens - 1 for turn in self.turns or ())

    def asked_in(self, turn: int) -> "RequestSpec | Turn":
        """The spec or turn with the number of tokens that it samples in a turn."""
        return self.turns[turn - 1] if self.turns and turn else self

    def said_in(self, turn: int) -> tuple[int, ...]:
        """The new tokens of a turn after the first."""
        assert self.turns is not None, f"{self.request_id} is no session"
        count, root = self.turns[turn - 1].tokens, self.conversation << 32 | turn << 24
        return tuple(2000 + mix(root | position) % 997 for position in range(count))


AHEAD: Final = 1 << 13
"""More tokens than steps in flight, with drafts, compute beyond the last token of a request."""


def most_tokens(spec: RequestSpec, max_model_len: int) -> int:
    """The most tokens that a request can have: all of them are made when it arrives."""
    told = spec.shared_tokens + spec.own_tokens + spec.output_tokens
    later = sum(turn.tokens + turn.output_tokens for turn in spec.turns or ())
    return min(max_model_len, told + later + AHEAD)
