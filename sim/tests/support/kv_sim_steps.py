"""A scheduler by itself, step by step, over a connector that answers as it is told to."""

from collections import deque
from typing import Any

from kv_api import KVConnectorOutput
from kv_sim.config import WorldConfig
from kv_sim.engine.outcome import Outcome
from kv_sim.engine.output import Step
from kv_sim.engine.request import SimRequest
from kv_sim.engine.request_spec import RequestSpec
from kv_sim.engine.scheduler import Scheduler
from kv_sim.memory.shadow import Shadow
from kv_sim.violation import Referee


class Told:
    """A connector's side. ``has``: request -> what it has of it, and whether that comes asynchronously."""

    def __init__(self) -> None:
        self.has: dict[str, tuple[int | None, bool]] = {}
        self.holds: set[str] = set()
        """Requests whose blocks it keeps when they end."""
        self.keeps_tails = False
        self.requires_kv_delivery = False
        self.frees_blocks_soon = False
        self.calls: list[tuple[Any, ...]] = []

    def __getattr__(self, name: str) -> Any:
        return lambda *args: self.calls.append((name, *args))

    def get_num_new_matched_tokens(self, request: SimRequest, computed: int) -> tuple[int | None, bool]:
        """How far what it has goes beyond ``computed``."""
        tokens, is_async = self.has.get(request.request_id, (0, False))
        more = None if tokens is None else max(0, tokens - computed)
        return more, is_async and bool(more)

    def has_pending_block_frees(self) -> bool:
        """Whether blocks come back soon, so that nobody need lose his."""
        return self.frees_blocks_soon

    def register_finished_partial_tail(self, request: SimRequest, blocks: Any, tails: Any) -> bool:
        """A state within a block."""
        self.calls.append(("tail", request.request_id, blocks, tails))
        return self.keeps_tails

    def request_finished_all_groups(self, request: SimRequest, blocks: Any) -> tuple[bool, None]:
        """A request ended."""
        self.calls.append(("ended", request.request_id, blocks))
        return request.request_id in self.holds, None

    def request_finished(self, request: SimRequest, blocks: list[int]) -> tuple[bool, None]:
        """The same, for a connector of one group."""
        return self.request_finished_all_groups(request, blocks)

    def take(self, name: str) -> list[tuple[Any, ...]]:
        """What it was called with by this name since the last time."""
        taken = [call[1:] for call in self.calls if call[0] == name]
        self.calls = [call for call in self.calls if call[0] != name]
        return taken


class Steps:
    """The scheduler, and what its steps' outputs change."""

    def __init__(self, *, all_groups: bool = True, **config: Any) -> None:
        self.config = WorldConfig(**config)
        self.connector, self.referee = Told(), Referee()
        connector: Any = self.connector
        self.scheduler = Scheduler(self.config, connector, Shadow(1, self.referee), all_groups=all_groups)
        self.outcome = Outcome(self.scheduler, self.referee)
        self.under_way: deque[Step] = deque()

    def add(self, name: str, tokens: int, output: int = 1, *, shared: int = 0, **rest: Any) -> SimRequest:
        """A request of ``tokens`` tokens, of which it shares the first ``shared`` with others."""
        spec = RequestSpec(name, 0, shared, tokens - shared, output, rest.pop("max_tokens", output), **rest)
        made = SimRequest(spec, self.config.block_size, self.config.max_model_len, self.config.hashes_per_block)
        self.scheduler.add_request(made)
        return made

    def schedule(self, **rejects: int) -> dict[str, int]:
        """One more step; how many tokens each request computes in it."""
        output, plan = self.scheduler.schedule(lambda name, drafts: min(drafts, rejects.get(name, 0)))
        self.scheduler.check()
        self.under_way.append(
            Step(
                self.scheduler.num_steps,
                output,
                plan.attentions,
                plan.poison,
                [],
                plan.sync_targets,
                plan.rejected,
                plan.sampling,
                plan.ends,
                keeps_room=plan.keeps_room,
            )
        )
        return output.num_scheduled_tokens

    @property
    def drafts(self) -> dict[str, int]:
        """How many drafts each request has in the step that was scheduled last."""
        return {name: len(d) for name, d in self.under_way[-1].output.scheduled_spec_decode_tokens.items()}

    def process(self, **report: Any) -> None:
        """The oldest step comes back with this report."""
        self.outcome.process(self.under_way.popleft(), KVConnectorOutput(**report))
        self.scheduler.check()

    def step(self, **rejects: int) -> dict[str, int]:
        """Schedule a step, and let it come back."""
        counts = self.schedule(**rejects)
        self.process()
        return counts

    @property
    def queues(self) -> tuple[list[str], list[str], list[str]]:
        """Who runs, who waits, and who waits with blocks."""
        s = self.scheduler
        running, waiting, holding = ([r.request_id for r in queue] for queue in (s.running, s.waiting, s.holding))
        return running, waiting, holding
