"""``DraftedStates``: which blocks have the states of a request with drafts, as vLLM's workers see it.

A state can't be taken back, so each token of a step with drafts leaves a state of its own. The state after the
known tokens is in the *running* block: the one that the table has for the end of the step. Behind it a request has
as many blocks as there may be drafts, and the state after each draft is in the next one of these. How many drafts
were right decides from which of them the next step goes on: if it has another running block, the state is copied
there first. If a right draft ends a block, the state after it is copied to where the table has that block, for
requests that look for it later.

The scheduler takes blocks out of a table, and moves those of drafts to its end. A worker is told only of the
blocks that are added, so its tables differ, and are kept here.
"""

from dataclasses import dataclass, replace
from typing import Final

from kv_sim.config import STATE, WorldConfig
from kv_sim.memory.launched import Attention, StateMoves
from kv_vllm.driver.step import Stint, VllmStep


def with_few_drafts(config: WorldConfig) -> WorldConfig:
    """A world of states with as many drafts as fit into a block, those of all steps under way together.

    Blocks of states are long, so a real model has no more. With more a request may pass over a whole block in a
    step, and a worker's copy of the state at its end goes where the worker still has a block of drafts. There are
    no drafts where a prompt may end within a block, and no sessions beside drafts, since a session drops a token.

    A step has to get over a block of states, and a draft model that reads all tokens by itself takes one of it.
    """
    if STATE not in config.groups:
        return config
    most = 0 if config.has_tails else max(0, config.block_size // config.max_concurrent_steps - 1)
    drafts = min(config.spec_tokens, most)
    least = config.block_size + 1 if drafts and config.drafter == "model" else 0
    return replace(
        config,
        spec_tokens=drafts,
        sessions=config.sessions and not drafts,
        max_step_tokens=max(config.max_step_tokens, least),
    )


@dataclass
class _Request:
    """A request as a worker knows it."""

    stint: Stint
    tables: list[list[int]]
    running: int
    """The running block's place in the tables."""
    end: int
    """How many tokens were computed, without wrong drafts."""
    right_drafts: int = 0
    """How far behind the running block the state after the last of these is."""


class DraftedStates:
    """Where the states are that the steps of one engine read and write."""

    def __init__(self, config: WorldConfig) -> None:
        self._block_size: Final = config.block_size
        has_drafts = config.spec_tokens > 0
        self._groups = [place for place, group in enumerate(config.groups) if has_drafts and group == STATE]
        self._requests: dict[str, _Request] = {}

    def place(self, step: VllmStep) -> None:
        """Say of what a step computes where its states are. Steps come in the order of scheduling."""
        if self._groups:
            step.attentions = [self._placed(step, attention) for attention in step.attentions]

    def _placed(self, step: VllmStep, attention: Attention) -> Attention:
        name, size = attention.request_id, self._block_size
        request = self._follow(step.stints[name], attention)
        before, ran = request.running + request.right_drafts, request.running
        drafts = len(step.output.scheduled_spec_decode_tokens.get(name, ()))
        wrong = step.rejected.get(name, 0)
        known = attention.end - drafts
        request.running = (attention.end - 1) // size
        request.end, request.right_drafts = attention.end - wrong, drafts - wrong
        full_blocks = request.end // size
        is_copied = attention.start > 0 and request.running not in (ran, before)
        states = {}
        for group in self._groups:
            table = request.tables[group]
            after = [(table[request.running + draft], known + draft - 1) for draft in range(drafts + 1)]
            if full_blocks * size >= known:
                after.append((table[full_blocks - 1], full_blocks * size - 1))
            copied_to = table[request.running] if is_copied else None
            states[group] = StateMoves(table[before] if attention.start else None, tuple(after), copied_to)
        if full_blocks - 1 == request.running:
            request.right_drafts = 0  # the copy went to the running block itself
        return replace(attention, states=states)

    def _follow(self, stint: Stint, attention: Attention) -> _Request:
        """The request with its tables as a worker has them for the step."""
        request = self._requests.get(attention.request_id)
        if request is None or request.stint != stint or request.end != attention.start:
            running = max(0, attention.start - 1) // self._block_size
            request = _Request(stint, [[] for _ in attention.tables], running, attention.start)
            self._requests[attention.request_id] = request
        for known, table in zip(request.tables, attention.tables, strict=True):
            known += table[len(known) :]
        return request
