"""``TracedRequest``: a request of a trace in the engine's form.

A trace names the blocks of a prompt; it has no tokens. Each name becomes a number, and the number becomes a block
hash. A trace doesn't name the blocks that outputs complete, so they get numbers that no other request has. The
next turn of a conversation has the same tokens in its prompt, under names of the trace that nothing connects with
the output. So an output is never found again, not even by the request that continues it.
"""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import overload

import numpy as np

from kv_sim.engine.request import SimRequest
from kv_sim.engine.request_spec import RequestSpec
from kv_sim.memory.content import Words, mix, mix_words
from kv_sim.replay.timed.durations.timing import to_ns
from kv_sim.replay.trace import TraceRequest

_OWN_BITS = 24


class Names:
    """Numbers for the blocks that a trace names, in the order in which they first occur.

    The engine's blocks may be smaller: then one block of the trace is ``parts`` of the engine's.
    """

    def __init__(self, parts: int = 1) -> None:
        self.parts = parts
        self._numbers: dict[int, int] = {}

    def shared(self, block_ids: Iterable[int]) -> Iterator[int]:
        """The numbers of the engine's blocks of a prompt whose blocks have these ids in the trace."""
        for block_id in block_ids:
            first = self._numbers.setdefault(block_id, len(self._numbers)) * self.parts
            yield from range(2 * first, 2 * (first + self.parts), 2)

    @staticmethod
    def own(request: int, index: int) -> int:
        """The number of a block that only this request has."""
        assert index < 1 << _OWN_BITS, f"request {request} has a block {index}"
        return (request << _OWN_BITS | index) << 1 | 1


class Tokens(Sequence[int]):
    """The tokens of a request, computed when they are read, from the block's number and the place in the block."""

    def __init__(self, numbers: Sequence[int], block_size: int, length: int) -> None:
        self._numbers = numbers
        self._size = block_size
        self._length = length

    def __len__(self) -> int:
        return self._length

    @overload
    def __getitem__(self, index: int) -> int: ...
    @overload
    def __getitem__(self, index: slice) -> list[int]: ...
    def __getitem__(self, index: int | slice) -> int | list[int]:
        if isinstance(index, slice):
            start, stop, step = index.indices(self._length)
            return self._from_to(start, stop) if step == 1 else [self._token(p) for p in range(start, stop, step)]
        if not -self._length <= index < self._length:
            raise IndexError(f"token {index} of {self._length}")
        return self._token(index % self._length)

    def __iter__(self) -> Iterator[int]:
        return (self._token(place) for place in range(self._length))

    def _from_to(self, start: int, stop: int) -> list[int]:
        """Many tokens at once, since kv-p2p compares whole prompts."""
        places = np.arange(start, max(start, stop))
        numbers = np.array(self._numbers, np.uint64)[places // self._size]
        values = mix_words(numbers * np.uint64(self._size) + (places % self._size).astype(np.uint64))
        tokens: list[int] = (values % np.uint64(100_000)).tolist()
        return tokens

    def _token(self, place: int) -> int:
        number, offset = self._numbers[place // self._size], place % self._size
        return mix(number * self._size + offset) % 100_000


@dataclass(slots=True)
class Times:
    """The times and hits of a request. Times are nanoseconds; -1: not yet."""

    arrival: int
    scheduled: int = -1
    """When its first load or step was planned."""
    first_token: int = -1
    end: int = -1
    served_before: int = 0
    """How long another engine served it, before this engine got it."""
    parked: int = -1
    """Since when it has been waiting for a load."""
    load_wait: int = 0
    local_tokens: int = -1
    """Found on the GPU when it was first scheduled."""
    external_tokens: int = 0
    """Found by the connector when it was first scheduled."""
    disk_tokens: int = 0
    """The part of these that was found in files."""


class TracedRequest(SimRequest):
    """One request of the trace on one engine."""

    def __init__(self, index: int, traced: TraceRequest, names: Names, block_size: int) -> None:
        self.index = index
        outputs = output_tokens_of(traced)
        self.spec = self.asked = RequestSpec(str(index), 0, traced.input_tokens, 0, outputs, outputs)
        self.request_id = self.spec.request_id
        self.cache_salt = None
        self.lora_request = None
        self.mm_features = []
        self.kv_transfer_params = None
        self.num_prompt_tokens = traced.input_tokens
        self.run_order = 0
        """Its place among the running requests, which are in the order of admission."""
        self.source_is_known = False
        """Whether the connector has said from which source its hits come."""
        self.is_restless = False
        """Whether the connector may decide something about it in any step."""
        self._block_size = block_size
        total = self.num_prompt_tokens + outputs
        named = min(traced.input_tokens // block_size, len(traced.blocks) * names.parts)
        self.numbers = [
            *islice(names.shared(traced.blocks), named),
            *(names.own(index, place) for place in range(named, -(-total // block_size))),
        ]
        self._block_hashes = [number.to_bytes(8, "big") for number in self.numbers]
        self.hashes: Words = np.empty(0, np.uint64)
        self.times = Times(to_ns(traced.arrival_seconds))

    @property
    def all_token_ids(self) -> Sequence[int]:
        return Tokens(self.numbers, self._block_size, self.num_tokens)

    @property
    def prompt_token_ids(self) -> Sequence[int]:
        return Tokens(self.numbers, self._block_size, self.num_prompt_tokens)

    @property
    def block_hashes(self) -> Sequence[bytes]:
        return self.known_block_hashes

    @property
    def unlike(self) -> str:
        return ""  # it has no lists

    def _show(self) -> None:
        """It has no lists that grow."""

    def forget_blocks(self) -> None:
        """Drop its block tables, since it has ended and only its times are needed."""
        self.numbers, self._block_hashes, self.hashes = [], [], np.empty(0, np.uint64)

    def write_contents(self) -> None:
        """Tell devices with memory what each of its slots must hold."""
        places = np.arange(self._block_size, dtype=np.uint64)
        base = np.array(self.numbers, np.uint64)[:, None] * np.uint64(self._block_size) + places
        scrambled = base * np.uint64(0x9E3779B97F4A7C15)
        self.hashes = (scrambled ^ (scrambled >> np.uint64(29))).reshape(-1)


def output_tokens_of(traced: TraceRequest) -> int:
    """How many tokens a request samples: an engine samples at least one."""
    return max(1, traced.output_tokens)
