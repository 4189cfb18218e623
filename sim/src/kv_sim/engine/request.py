"""``SimRequest``: a request in the engine, as a connector sees it.

All of a request's tokens are known when it is made (``story``). The part that the scheduler *knows* grows as
outputs are processed, as in a real engine. Draft tokens that will be rejected leave other bytes in their slots
until these are overwritten.

A connector gets lists that grow with what the scheduler knows, as those of vLLM's requests do: if it keeps a
list, it sees that grow. The engine has its own, so who changes one harms only itself; ``unlike`` tells of it.

A *session* is a request that stops more than once: it pauses, and continues with a longer prompt. That prompt
begins with all earlier tokens except the last sampled one, which was never computed. So each turn has its own
story.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import Any, NamedTuple

import numpy as np

from kv_sim.engine.request_spec import RequestSpec, Turn
from kv_sim.engine.story import Story, tell
from kv_sim.memory.content import Words, mix, root_hash


class Status(Enum):
    """A request's status, with vLLM's names."""

    WAITING = "waiting"
    WAITING_FOR_REMOTE_KVS = "waiting for a load"
    WAITING_FOR_STREAMING_REQ = "waiting for its next turn"
    RUNNING = "running"
    PREEMPTED = "preempted"
    FINISHED_STOPPED = "stopped"
    FINISHED_LENGTH_CAPPED = "at its limit"
    FINISHED_ABORTED = "aborted"
    FINISHED_ERROR = "failed"

    @property
    def is_finished(self) -> bool:
        """Whether the request has ended."""
        return self.ran_to_its_end or self in (Status.FINISHED_ABORTED, Status.FINISHED_ERROR)

    @property
    def ran_to_its_end(self) -> bool:
        """Whether the request has sampled all that it ever would."""
        return self in (Status.FINISHED_STOPPED, Status.FINISHED_LENGTH_CAPPED)


@dataclass(frozen=True)
class LoRA:
    """A LoRA adapter."""

    lora_name: str


class Placeholder(NamedTuple):
    """The place of an image's placeholder tokens in a prompt."""

    offset: int
    length: int


@dataclass(frozen=True)
class Feature:
    """An image in a prompt; vLLM's field names."""

    identifier: str
    mm_position: Placeholder
    modality: str = "image"


class Shown(NamedTuple):
    """The lists that a connector gets of a request."""

    all_token_ids: list[int]
    prompt_token_ids: list[int]
    block_hashes: list[bytes]


class SimRequest:
    """Implements ``kv_api.Request``; its other members are for the engine."""

    hashes_per_block: int = 1
    status = Status.WAITING
    num_computed_tokens = 0
    num_in_flight_tokens = 0
    num_stale_output_tokens = 0
    _num_output_tokens = 0
    drop_stale_output = False
    num_output_placeholders = 0
    num_draft_tokens = 0
    num_preemptions = 0
    num_unseen_rejects = 0
    """Drafts that the device has rejected in steps that the scheduler hasn't processed yet."""
    is_prefill_chunk = True
    last_sched_seq = 0
    awaits_load = False
    """An asynchronous load was announced and has not been reported."""
    is_held = False
    """It ended, and the engine holds its blocks until a store is reported."""
    asked: RequestSpec | Turn
    """The spec or turn with the number of tokens that it samples now."""
    turn = 0
    """The turn in which a session is."""
    turns_arrived = 0
    """Of a session: how many turns after the first have arrived. One more than there are means its end."""

    def __init__(
        self, spec: RequestSpec, block_size: int, length: int, hashes_per_block: int = 1, seed: int = 0
    ) -> None:
        """``seed``: a start value of its block hashes, so that they differ between block sizes."""
        self.spec = spec
        self.hashes_per_block = hashes_per_block
        self.request_id = spec.request_id
        self.cache_salt = spec.salt
        self.lora_request = LoRA(spec.adapter) if spec.adapter is not None else None
        self.mm_features = [Feature(image.name, Placeholder(image.at, 1))] if (image := spec.seen) else []
        self.kv_transfer_params: Any = None
        self._shown = Shown([], [], [])
        self._block_size = block_size
        root = root_hash(spec.salt, spec.adapter)
        self.stories: list[Story] = []
        """The story of each turn."""
        prompt = spec.prompt
        for number in range(len(spec.turns or ()) + 1):
            if number:
                prompt = (*prompt, *spec.said_in(number))
            self.stories.append(tell(root, prompt, length, spec.seen, block_size, hashes_per_block, seed))
            prompt = tuple(self.stories[-1].tokens[: len(prompt) + spec.asked_in(number).output_tokens - 1])
        self._take_up(spec)

    def _take_up(self, asked: RequestSpec | Turn) -> None:
        self.asked = asked
        self.num_prompt_tokens, self._tokens, self.hashes, self._block_hashes = self.stories[self.turn]
        for shown in self._shown:
            shown.clear()
        self._shown.prompt_token_ids.extend(self._tokens[: self.num_prompt_tokens])
        self.num_output_tokens = 0

    @property
    def num_output_tokens(self) -> int:
        """Sampled tokens that the scheduler knows."""
        return self._num_output_tokens

    @num_output_tokens.setter
    def num_output_tokens(self, count: int) -> None:
        self._num_output_tokens = count
        self._show()

    def _show(self) -> None:
        """Let the lists grow by what the scheduler has come to know."""
        tokens, hashes = self._shown.all_token_ids, self._shown.block_hashes
        tokens += self._tokens[len(tokens) : self.num_tokens]
        hashes += self._block_hashes[len(hashes) : self._num_known_hashes]

    @property
    def unlike(self) -> str:
        """The name of a list that a connector has changed; empty: none."""
        tokens = self._tokens[: self.num_tokens]
        known = Shown(tokens, tokens[: self.num_prompt_tokens], self.known_block_hashes)
        pairs = zip(Shown._fields, self._shown, known, strict=True)
        return next((name for name, shown, right in pairs if shown != right), "")

    @property
    def words(self) -> dict[str, Any]:
        """Its ``kv_transfer_params`` if they are an object, otherwise an empty one."""
        params = self.kv_transfer_params
        return params if isinstance(params, dict) else {}

    # -- sessions ------------------------------------------------------------------------------

    @property
    def may_hear_more(self) -> bool:
        """Whether it is a session whose next turn, or end, can still arrive."""
        return self.spec.turns is not None and self.turns_arrived <= len(self.spec.turns)

    @property
    def has_next_turn(self) -> bool:
        """Whether a turn after this one has arrived."""
        return self.turn < min(self.turns_arrived, len(self.stories) - 1)

    @property
    def was_told_to_end(self) -> bool:
        """Whether a session ends after the turns that have arrived."""
        return self.turns_arrived == len(self.stories)

    def forget_steps_under_way(self) -> None:
        """Drop what later steps compute for it, since they read blocks that were not loaded, or it has stopped."""
        self.drop_stale_output = True
        self.num_stale_output_tokens = self.num_in_flight_tokens
        self.num_output_placeholders = self.num_unseen_rejects = self.num_draft_tokens = 0

    def begin_turn(self) -> None:
        """Let a session continue with a longer prompt, which begins with its computed tokens."""
        self.turn += 1
        self._take_up(self.spec.asked_in(self.turn))

    # -- tokens and hashes ---------------------------------------------------------------------

    @property
    def num_tokens(self) -> int:
        """Tokens that the scheduler knows."""
        return self.num_prompt_tokens + self.num_output_tokens

    @property
    def all_token_ids(self) -> Sequence[int]:
        """The tokens that the scheduler knows."""
        return self._shown.all_token_ids

    @property
    def prompt_token_ids(self) -> Sequence[int]:
        """The tokens of the prompt."""
        return self._shown.prompt_token_ids

    @property
    def block_hashes(self) -> Sequence[bytes]:
        """The hashes of known tokens: one for each full block, or several."""
        return self._shown.block_hashes

    @property
    def known_block_hashes(self) -> list[bytes]:
        """The hashes of known tokens, as the engine sees them: nobody else can change these."""
        return self._block_hashes[: self._num_known_hashes]

    @property
    def _num_known_hashes(self) -> int:
        return self.num_tokens * self.hashes_per_block // self._block_size

    def hashes_up_to(self, tokens: int) -> Sequence[bytes]:
        """The hashes of the full blocks of the first ``tokens`` tokens, known or not."""
        full = tokens // self._block_size
        return self._block_hashes[self.hashes_per_block - 1 : full * self.hashes_per_block : self.hashes_per_block]

    def hashes_in_parts_up_to(self, tokens: int, parts: int) -> Sequence[bytes]:
        """The same, if each full block is divided into ``parts``: the hash of each part."""
        step = self.hashes_per_block // parts
        return self._block_hashes[step - 1 : tokens // self._block_size * self.hashes_per_block : step]

    def fine_hashes_up_to(self, tokens: int) -> Sequence[bytes]:
        """All hashes of the first ``tokens`` tokens, known or not."""
        return self._block_hashes[: tokens * self.hashes_per_block // self._block_size]

    @property
    def prompt_hashes(self) -> Sequence[bytes]:
        """The hashes of the full blocks of the prompt."""
        return self.hashes_up_to(self.num_prompt_tokens)

    def known_hashes(self) -> Iterator[Sequence[bytes]]:
        """By turn, the hashes of all full blocks it has known; in earlier turns including the token it dropped."""
        last = self.hashes_per_block - 1
        for turn, story in enumerate(self.stories[: self.turn]):
            tokens = story.prompt_tokens + self.spec.asked_in(turn).output_tokens
            yield story.block_hashes[last :: self.hashes_per_block][: tokens // self._block_size]
        yield self.hashes_up_to(self.num_tokens)

    def all_blocks(self, parts: int = 1) -> Iterator[tuple[bytes, bytes | None, list[int]]]:
        """Each full block that it may ever have: its hash, the one before it, and its tokens.

        The same if each is divided into ``parts``.
        """
        size, step = self._block_size // parts, self.hashes_per_block // parts
        for story in self.stories:
            names = story.block_hashes[step - 1 :: step]
            for index, name in enumerate(names):
                yield name, names[index - 1] if index else None, story.tokens[index * size : (index + 1) * size]

    def parts_of_blocks(self) -> Iterator[tuple[bytes | None, bytes, list[int]]]:
        """For each hash within a block: the hash before it, the hash, and the tokens between them."""
        size, count = self._block_size // self.hashes_per_block, self.hashes_per_block
        for story in self.stories:
            for index, part in enumerate(story.block_hashes):
                if (index + 1) % count:
                    before = story.block_hashes[index - 1] if index else None
                    yield before, part, story.tokens[index * size : (index + 1) * size]

    def images_by_hash(self, parts: int | None = None) -> dict[bytes, tuple[str, int]]:
        """Hash of the block (and of the part of a block) with its image -> the image, and its position there.

        With ``parts``: of the one of so many parts of a block.
        """
        found: dict[bytes, tuple[str, int]] = {}
        image, count = self.spec.seen, self.hashes_per_block
        if image is None:
            return found
        for story in self.stories:
            for hashes in (1, count) if parts is None else (count // parts,):
                size = self._block_size // count * hashes
                index = (image.at // size + 1) * hashes - 1
                if index < len(story.block_hashes):
                    found[story.block_hashes[index]] = image.name, image.at % size
        return found

    @property
    def num_tokens_with_spec(self) -> int:
        """Known tokens and drafts."""
        return self.num_tokens + self.num_draft_tokens

    def wrong_draft_hashes(self, start: int, end: int) -> Words:
        """The bytes that rejected drafts leave in ``[start, end)``; they belong to no prefix."""
        return np.array([mix(int(h) ^ 0xD12AF7) for h in self.hashes[start:end]], dtype=np.uint64)

    @property
    def waits_for(self) -> str:
        """For messages: the report that an ended request's blocks wait for. Empty: it has no blocks."""
        if not self.status.is_finished:
            return ""
        if self.is_held:
            return "held, waits for finished_sending"
        return "loading, waits for finished_recving" if self.awaits_load else ""

    def __repr__(self) -> str:
        waits = f", {self.waits_for}" if self.waits_for else ""
        return (
            f"<request {self.request_id} {self.status.value} {self.num_computed_tokens}/{self.num_tokens}{waits}>"
        )
