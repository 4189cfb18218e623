"""What an offloading medium knows of a request: the keys of its chunks, its tiers, how it is offloaded."""

from collections.abc import Collection, Sequence
from dataclasses import dataclass, field
from enum import Enum
from typing import Any, ClassVar, NamedTuple, NewType, TypeVar

OffloadKey = NewType("OffloadKey", bytes)
"""What a chunk holds: the last block hash of the chunk, then its group in four bytes."""

_StateT = TypeVar("_StateT")


def make_offload_key(block_hash: bytes, group_idx: int) -> OffloadKey:
    """The key of the chunk of ``group_idx`` that ends with ``block_hash``."""
    return OffloadKey(block_hash + group_idx.to_bytes(4, "big"))


def get_offload_block_hash(key: OffloadKey) -> bytes:
    """The block hash in a key."""
    return key[:-4]


def get_offload_group_idx(key: OffloadKey) -> int:
    """The group in a key."""
    return int.from_bytes(key[-4:], "big")


class Medium(Enum):
    """What kind of memory a tier is."""

    CPU = "CPU"
    STORAGE = "STORAGE"


class Locality(Enum):
    """Whether a tier is on the machine of the engine."""

    LOCAL = "LOCAL"
    REMOTE = "REMOTE"


class TierMatcher(NamedTuple):
    """Describes tiers. A field that is None, here or in the tier, matches anything."""

    medium: Medium | None = None
    locality: Locality | None = None

    def matches(self, medium: Medium | None, locality: Locality | None) -> bool:
        """Whether a tier of this kind is described."""
        return (self.medium is None or medium is None or self.medium is medium) and (
            self.locality is None or locality is None or self.locality is locality
        )


@dataclass(frozen=True)
class TierFilter:
    """Which tiers a request may load from: those that any matcher describes."""

    matchers: tuple[TierMatcher, ...] = ()

    ALL: ClassVar["TierFilter"]

    def allows(self, medium: Medium | None, locality: Locality | None) -> bool:
        """Whether the request may load from such a tier."""
        return any(matcher.matches(medium, locality) for matcher in self.matchers)


TierFilter.ALL = TierFilter((TierMatcher(),))


_REACH = 1024
"""How many keys are searched for a key before the positions of all keys are noted."""


@dataclass(slots=True)
class _DerivedPositions:
    """Keys of a request's chunks that follow one another without a gap, so that their positions can be derived.

    With one group, callers go through a request from its first token on. A key is therefore mostly found within
    ``_REACH`` places after the last one found; otherwise the positions of all keys are noted, once. While a
    request grows, each step asks for the last known key and the first new key: these two are tried first. With
    several groups a key mostly belongs to another group, so all positions are noted at once.
    """

    keys: Sequence[OffloadKey]
    tokens_per_chunk: int
    place: int = 0
    """Index of the key that was found last."""
    border: int = 0
    """Index at which the first new key may be."""
    num_noted: int = 0

    def find(self, key: OffloadKey, positions: dict[OffloadKey, int]) -> int | None:
        """Where the chunk of ``key`` ends. ``key`` is not in ``positions``, whose entries stay."""
        keys, border, count = self.keys, self.border, len(self.keys)
        if border < count and keys[border] == key:
            self.border = count
            return (border + 1) * self.tokens_per_chunk
        if 0 < border <= count and keys[border - 1] == key:
            self.place = border - 1
            return border * self.tokens_per_chunk
        if self.num_noted == count:
            return None
        try:
            self.place = keys.index(key, self.place, self.place + _REACH)
        except ValueError:
            self.note(positions)
            return positions.get(key)
        self.border = self.place + 1
        return self.border * self.tokens_per_chunk

    def go_on(self, last: OffloadKey, new: OffloadKey) -> bool:
        """Whether ``new`` is the first new key and ``last`` the key before it. If so, both count as found."""
        keys, border, count = self.keys, self.border, len(self.keys)
        if 0 < border < count and keys[border] == new and keys[border - 1] == last:
            self.place, self.border = border - 1, count
            return True
        return False

    def note(self, positions: dict[OffloadKey, int]) -> None:
        """Note in ``positions`` where the chunks of new keys end. Entries that are there stay."""
        first, stop, size = self.num_noted + 1, len(self.keys) + 1, self.tokens_per_chunk
        if first < stop:
            new = dict(zip(self.keys[first - 1 :], range(first * size, stop * size, size), strict=True))
            for key in positions.keys() & new:
                del new[key]
            positions.update(new)
            self.num_noted = stop - 1


@dataclass
class ReqContext:
    """What a manager knows of the request it works for; one object for the whole life of the request."""

    req_id: str
    kv_transfer_params: dict[str, Any] | None = None
    kv_hints: Any = None
    load_tier_filter: TierFilter = TierFilter.ALL
    _state: dict[type, Any] = field(default_factory=dict, repr=False, init=False)
    _key_positions: dict[OffloadKey, int] = field(default_factory=dict, repr=False, init=False)
    _derived: list[_DerivedPositions] = field(default_factory=list, repr=False, init=False, compare=False)

    def set_state(self, val: Any) -> None:
        """Keep ``val`` for this request, under its type."""
        self._state[type(val)] = val

    def get_state(self, cls: type[_StateT]) -> _StateT | None:
        """What was kept under ``cls``."""
        value: _StateT | None = self._state.get(cls)
        return value

    def set_offload_key_position(self, key: OffloadKey, end_token: int) -> None:
        """Note that the chunk of ``key`` ends at token ``end_token`` of this request."""
        self._key_positions[key] = end_token

    def derive_offload_key_positions(self, keys: Sequence[OffloadKey], tokens_per_chunk: int) -> None:
        """Tell that the chunks of ``keys`` follow one another from token 0, so their positions can be derived.

        ``keys`` is kept, and may grow at its end. A key that is never asked for costs nothing. vLLM's class
        doesn't have this method.
        """
        self._derived.append(_DerivedPositions(keys, tokens_per_chunk))

    def get_offload_key_position(self, key: OffloadKey) -> int | None:
        """Where the chunk of ``key`` ends in this request, if that was noted or can be derived."""
        position = self._key_positions.get(key)
        if position is None and len(self._derived) == 1:
            return self._derived[0].find(key, self._key_positions)
        if position is None:
            for derived in self._derived:
                derived.note(self._key_positions)
            return self._key_positions.get(key)
        return position

    def is_offload_key_before(self, key: OffloadKey, other: OffloadKey) -> bool:
        """Whether the chunk of ``key`` is known to end before that of ``other``.

        Mostly ``key`` is the first new one of a request, right after ``other``; that case is recognised at once.
        vLLM's class doesn't have this method.
        """
        if not self._key_positions and len(self._derived) == 1 and self._derived[0].go_on(other, key):
            return False
        other_end, end = self.get_offload_key_position(other), self.get_offload_key_position(key)
        return end is not None and other_end is not None and end < other_end


class OffloadPolicy(Enum):
    """What a request offers for storing."""

    CHUNK_LEVEL = "chunk_level"
    """Chunks as they are computed; those it loaded are in some tier already."""
    REQUEST_LEVEL = "request_level"
    """All of its chunks, also those it loaded."""


@dataclass
class RequestOffloadingContext:
    """How a request is offloaded; a manager's answer to ``on_new_request``."""

    policy: OffloadPolicy = OffloadPolicy.CHUNK_LEVEL


class ScheduleEndContext(NamedTuple):
    """What a step scheduled, for ``on_schedule_end``."""

    new_req_ids: Collection[str]
    preempted_req_ids: Collection[str]
