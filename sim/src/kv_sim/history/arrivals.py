"""Draws requests that share prefixes and end next to every boundary.

Prompts come from a few conversations, the first ones much more often than the last (Zipf). Lengths lie at or next
to multiples of one block or of several. Some ids come back. In a world with sessions, some requests are sessions.
In one with images, half of the prompts of a conversation have one, at the same place in its first two blocks.

If an engine has no prefix cache, or serves others, most prompts are repeated, so that there are blocks to load or
to pull. In such a world half of the requests sample a single token, if there are windows or two engines. Each
further token moves the windows on, past what the prompt's last token read; and a router that wants a prompt held
for the other engine asks for a single token.
"""

from collections import deque
from collections.abc import Container
from dataclasses import replace
from random import Random

from kv_sim.config import WorldConfig
from kv_sim.engine.request_spec import RequestSpec, Turn

CONVERSATIONS = 5
MOST_BLOCKS = 12
"""Blocks of the longest request: enough to reach every boundary in few steps."""

ALTERNATING = 3
"""How many requests are repeated in turn where the prefix cache loses blocks."""

OF_HELD = 0.6
"""How often a request continues a prompt that another engine holds, if there is one."""


class Arrivals:
    """Draws requests for one world."""

    def __init__(self, config: WorldConfig, *, of_peers: bool = False) -> None:
        self._config = config
        self._come_again = of_peers or not config.prefix_caching or config.evicts > 0
        self._count = 0
        self._turns: list[int] = [0] * CONVERSATIONS
        self._before: deque[RequestSpec] = deque(maxlen=ALTERNATING if config.evicts else 1)
        """Requests that are repeated. Prompts that alternate aren't found in the blocks of running requests."""

    def draw(self, random: Random, taken: Container[str], held: RequestSpec | None = None) -> RequestSpec:
        """One more request, with an id that is not in ``taken``; maybe with a prompt that another engine holds."""
        config = self._config
        room = min(config.max_model_len, MOST_BLOCKS * config.block_size)
        conversation = random.choices(range(CONVERSATIONS), [60, 30, 20, 15, 12])[0]
        shared = self._length(random, room, self._turns[conversation])
        self._turns[conversation] = shared
        own = random.choice([0, 0, 1, config.block_size - 1, config.block_size])
        output = random.choice([1, 1, 2, 3, config.block_size, config.block_size + 1, 2 * config.block_size])
        slack = random.choice([0, 0, 1, 3])
        while shared + own + output + slack + 2 * config.spec_tokens + 1 > room and shared > 1:
            shared -= 1
        output = max(1, min(output, room - shared - own - slack - 2 * config.spec_tokens - 1))
        shared -= max(0, shared + own + output - config.longest_request)
        spec = RequestSpec(
            self._name(random, taken),
            conversation,
            max(shared, 1),
            own,
            output,
            output + slack,
            salt=random.choices([None, "s", "t"], [8, 1, 1])[0],
            adapter=random.choices([None, "s"], [8, 1])[0],
            skip_reading_prefix_cache=random.random() < 0.04,
        )
        if config.images:
            spec = self._with_image(spec)
        if held is not None and random.random() < OF_HELD:
            return self._to_go_on(held, spec)
        if self._come_again:
            spec = self._maybe_again(random, spec)
            if (config.engines > 1 or any(group.window for group in config.groups)) and random.random() < 0.5:
                spec = replace(spec, output_tokens=1, max_tokens=1)
        return self._as_session(random, room, spec) if config.sessions and random.random() < 0.5 else spec

    def _with_image(self, spec: RequestSpec) -> RequestSpec:
        """The same request, maybe with an image. It uses no other random draws of the history."""
        image = Random(repr((spec.request_id, spec.shared_tokens, spec.own_tokens))).choice([None, None, "i", "j"])
        place = Random(repr(("image", spec.conversation))).randrange(2 * self._config.block_size)
        return (
            replace(spec, image=image, image_at=place)
            if image is not None and place < spec.shared_tokens
            else spec
        )

    def _maybe_again(self, random: Random, spec: RequestSpec) -> RequestSpec:
        """Maybe the same request with an earlier request's prompt, if that prompt has no tokens of its own."""
        if not self._before or random.random() < 0.3:
            if self._config.evicts and spec.shared_tokens > self._config.block_size and random.random() < 3 / 4:
                return self._up_to_a_state(spec)
            self._before.append(replace(spec, own_tokens=0))
            return self._before[-1]
        before = random.choice(self._before) if len(self._before) > 1 else self._before[0]
        # The output gets one token less, unless the prompt was cut to make room.
        own = before.own_tokens or min(spec.own_tokens, 1, before.output_tokens - 1)
        return replace(
            before,
            request_id=spec.request_id,
            own_tokens=own,
            output_tokens=before.output_tokens - own + before.own_tokens,
            max_tokens=before.max_tokens - own + before.own_tokens,
            skip_reading_prefix_cache=spec.skip_reading_prefix_cache,
        )

    def _up_to_a_state(self, spec: RequestSpec) -> RequestSpec:
        """The request up to the end of a block, where it leaves a state. Those that repeat it go on from there."""
        tokens = (spec.shared_tokens - 1) // self._config.block_size * self._config.block_size
        image = spec.image if spec.image_at < tokens else None
        self._before.append(replace(spec, shared_tokens=tokens, own_tokens=1, image=image))
        return replace(self._before[-1], own_tokens=0, output_tokens=1, max_tokens=1)

    def _to_go_on(self, held: RequestSpec, spec: RequestSpec) -> RequestSpec:
        """A request with the held prompt, and as many of the drawn output tokens as there is room for."""
        room = self._config.longest_request - held.shared_tokens - held.own_tokens - 2 * self._config.spec_tokens
        output = max(1, min(spec.output_tokens, room))
        return replace(held, request_id=spec.request_id, output_tokens=output, max_tokens=output)

    def _as_session(self, random: Random, room: int, spec: RequestSpec) -> RequestSpec:
        """The same request with up to three more turns, as far as there is room for their tokens."""
        size, turns = self._config.block_size, []
        end = spec.shared_tokens + spec.own_tokens + spec.output_tokens
        for _ in range(random.choice([0, 1, 1, 2, 3])):
            tokens = random.choice([1, 1, 2, size - 1, size, size + 1, 2 * size])
            output, slack = random.choice([1, 1, 2, 3, size]), random.choice([0, 0, 1, 3])
            end += tokens + output - 1
            most = min(room - slack - 2 * self._config.spec_tokens - 1, self._config.longest_request)
            if end > most:
                break
            turns.append(Turn(tokens, output, output + slack))
        return replace(spec, turns=tuple(turns))

    def _length(self, random: Random, room: int, last: int) -> int:
        size = self._config.block_size
        if last and random.random() < 0.4:
            return min(last + random.choice([1, size, size + 1]), room)
        blocks = random.randint(1, max(1, room // size - 1))
        ends = [-1, 0, 0, 1]
        if self._config.is_fine:
            hashed = size // self._config.hashes_per_block
            ends += [hashed, hashed + 1, size - hashed + 1]
        return max(1, min(room, blocks * size + random.choice(ends)))

    def _name(self, random: Random, taken: Container[str]) -> str:
        if self._count and "same_id" not in self._config.silent and random.random() < 0.2:
            old = f"r{random.randint(1, self._count)}"
            if old not in taken:
                return old
        self._count += 1
        return f"r{self._count}"
