"""``SimRequest``: a request as the engine holds it and as a connector sees it.

The model is a function, so all that a request will ever hold is known when it is made: the tokens of its prompt,
the tokens that it will sample, and the hash after each. What the scheduler *knows* of it grows as outputs are
processed, like in a real engine. Draft tokens that will be rejected leave other bytes behind until they are
overwritten.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from enum import Enum
from functools import cached_property
from typing import Any

import numpy as np

from kv_sim.memory.content import Words, hash_text, mix, root_hash, whole_story


class Status(Enum):
    """Where a request is in its life; vLLM's names."""

    WAITING = "waiting"
    WAITING_FOR_REMOTE_KVS = "waiting for a load"
    RUNNING = "running"
    PREEMPTED = "preempted"
    FINISHED_STOPPED = "stopped"
    FINISHED_ABORTED = "aborted"
    FINISHED_ERROR = "failed"

    @property
    def is_finished(self) -> bool:
        """Whether the request has ended."""
        return self in (Status.FINISHED_STOPPED, Status.FINISHED_ABORTED, Status.FINISHED_ERROR)


@dataclass(frozen=True)
class LoRA:
    """An adapter."""

    lora_name: str


@dataclass(frozen=True)
class RequestSpec:
    """All that makes a request, small enough for a bug report."""

    request_id: str
    conversation: int
    """Requests of one conversation share its tokens, as far as both go."""
    shared_tokens: int
    own_tokens: int
    """Tokens of the prompt after those of the conversation; nobody else has them."""
    output_tokens: int
    """How many tokens it samples before it stops."""
    max_tokens: int
    """How many the engine thinks it may sample."""
    salt: str | None = None
    adapter: str | None = None
    skip_reading_prefix_cache: bool = False

    @cached_property
    def prompt(self) -> tuple[int, ...]:
        """The tokens of the prompt."""
        name = hash_text(self.request_id)
        shared = [mix(self.conversation << 32 | position) % 997 for position in range(self.shared_tokens)]
        own = [1000 + mix(name ^ position) % 997 for position in range(self.own_tokens)]
        return tuple(shared + own)


class SimRequest:
    """Fits ``kv_api.Request``; the rest is the engine's own."""

    hashes_per_block: int = 1
    status = Status.WAITING
    num_computed_tokens = 0
    num_in_flight_tokens = 0
    num_stale_output_tokens = 0
    drop_stale_output = False
    num_output_tokens = 0
    num_output_placeholders = 0
    num_draft_tokens = 0
    num_preemptions = 0
    num_unseen_rejects = 0
    """Drafts of steps under way that the device has rejected and the scheduler doesn't know of."""
    is_prefill_chunk = True
    last_sched_seq = 0
    awaits_load = False
    """An asynchronous load was announced and has not been reported."""
    is_held = False
    """It ended, and its blocks wait for a store to be reported."""

    def __init__(self, spec: RequestSpec, block_size: int, max_model_len: int, hashes_per_block: int = 1) -> None:
        self.spec = spec
        self.hashes_per_block = hashes_per_block
        self.request_id = spec.request_id
        self.cache_salt = spec.salt
        self.lora_request = LoRA(spec.adapter) if spec.adapter is not None else None
        self.kv_transfer_params: dict[str, Any] | None = None
        self.num_prompt_tokens = len(spec.prompt)
        self._block_size = block_size
        root = root_hash(spec.salt, spec.adapter)
        tokens, hashes = whole_story(root, spec.prompt, max_model_len)
        self._tokens = [*tokens]
        self.hashes: Words = np.zeros(-(-len(hashes) // block_size) * block_size, dtype=np.uint64)
        self.hashes[: len(hashes)] = np.array(hashes, dtype=np.uint64)
        size = block_size // hashes_per_block
        self._block_hashes = [hashes[end - 1].to_bytes(8, "big") for end in range(size, len(hashes) + 1, size)]

    @property
    def num_tokens(self) -> int:
        """Tokens that the scheduler knows."""
        return self.num_prompt_tokens + self.num_output_tokens

    @property
    def all_token_ids(self) -> Sequence[int]:
        """The tokens that the scheduler knows."""
        return self._tokens[: self.num_tokens]

    @property
    def prompt_token_ids(self) -> Sequence[int]:
        """The tokens of the prompt."""
        return self._tokens[: self.num_prompt_tokens]

    @property
    def block_hashes(self) -> Sequence[bytes]:
        """The hashes of known tokens: one for each full block, or several."""
        return self._block_hashes[: self.num_tokens * self.hashes_per_block // self._block_size]

    def hashes_up_to(self, tokens: int) -> Sequence[bytes]:
        """The hashes of the full blocks of the first ``tokens`` tokens, known or not."""
        full = tokens // self._block_size
        if self.hashes_per_block == 1:
            return self._block_hashes[:full]
        return self._block_hashes[self.hashes_per_block - 1 : full * self.hashes_per_block : self.hashes_per_block]

    def fine_hashes_up_to(self, tokens: int) -> Sequence[bytes]:
        """All hashes of the first ``tokens`` tokens, known or not."""
        return self._block_hashes[: tokens * self.hashes_per_block // self._block_size]

    @property
    def prompt_hashes(self) -> Sequence[bytes]:
        """The hashes of the full blocks of the prompt."""
        return self.hashes_up_to(self.num_prompt_tokens)

    def all_blocks(self) -> Iterator[tuple[bytes, list[int]]]:
        """Each full block that it may ever have: its hash and its tokens."""
        size = self._block_size
        for index, block_hash in enumerate(self.hashes_up_to(len(self._tokens))):
            yield block_hash, self._tokens[index * size : (index + 1) * size]

    def parts_of_blocks(self) -> Iterator[tuple[bytes | None, bytes, list[int]]]:
        """What each hash within a block stands for: the hash before it, itself, and the tokens of it alone."""
        size, count = self._block_size // self.hashes_per_block, self.hashes_per_block
        for index, part in enumerate(self._block_hashes):
            if (index + 1) % count:
                before = self._block_hashes[index - 1] if index else None
                yield before, part, self._tokens[index * size : (index + 1) * size]

    @property
    def num_tokens_with_spec(self) -> int:
        """Known tokens and drafts."""
        return self.num_tokens + self.num_draft_tokens

    def wrong_draft_hashes(self, start: int, end: int) -> Words:
        """What rejected drafts leave in ``[start, end)``: bytes that belong to no prefix."""
        return np.array([mix(int(h) ^ 0xD12AF7) for h in self.hashes[start:end]], dtype=np.uint64)

    def __repr__(self) -> str:
        return f"<request {self.request_id} {self.status.value} {self.num_computed_tokens}/{self.num_tokens}>"
