"""The scheduler's side of a MultiConnector, as far as one request is concerned: from its arrival to its end.

Its state is in four objects, each with its own file and invariants: ``choice`` (the match of each request),
``loads`` (loads in flight), ``saves`` (which children hold blocks) and ``last_report`` (two reports of one
request).
"""

from collections.abc import Callable
from typing import Any, ClassVar, cast

from kv_api import (
    BlockIds,
    CacheHitSource,
    KVCacheBlocks,
    KVCacheConfig,
    KVConnectorRole,
    PartialTails,
    Request,
    SchedulerSide,
    SupportsHMA,
    VllmConfig,
    supports_hma,
)
from kv_multi.blocks import Ids, blocks_to_load, none_of
from kv_multi.children import Child, is_outermost
from kv_multi.choice import Choices
from kv_multi.last_report import LastReport
from kv_multi.loads import LoadsInFlight
from kv_multi.metadata import PlannedLoad
from kv_multi.params import merge_params
from kv_multi.saves import Holds
from kv_multi.side import MultiSide

Finish = tuple[bool, dict[str, Any] | None]


class MultiRequests(MultiSide, SchedulerSide, SupportsHMA):
    """The calls of the scheduler's side that are about one request."""

    role: ClassVar[KVConnectorRole] = KVConnectorRole.SCHEDULER

    def __init__(self, vllm_config: VllmConfig, kv_cache_config: KVCacheConfig | None = None) -> None:
        super().__init__(vllm_config, kv_cache_config)
        self._choices = Choices(self._options.load_policy)
        self._holds = Holds()
        self._loads = LoadsInFlight()
        self._last_report = LastReport()
        self._is_outermost = is_outermost(vllm_config)

    def _on_switch_off(self, child: Child) -> None:
        self._loads.check_can_lose(child.place)

    # -- a request comes, is matched and gets its blocks --------------------------------------

    def on_new_request(self, request: Request) -> None:
        """Call every child."""
        for book in (self._choices, self._holds, self._loads, self._last_report):
            book.forget(request.request_id)
        for child in self._children:
            self._quarantine.ask(child, child.connector.on_new_request, None, request)

    def get_num_new_matched_tokens(self, request: Request, num_computed_tokens: int) -> tuple[int | None, bool]:
        """The answer of the first child that has tokens (``load_policy: longest``: of the first that has most).

        That child is the chosen one until the next query or the end of the request; after a query that finds
        nothing no child is chosen. If a child answers None, the answer is ``(None, False)`` at once, and the
        remaining children aren't asked.
        """
        answers = (
            self._quarantine.ask(
                child, _get_num_new_matched_tokens, (0, False), child, request, num_computed_tokens
            )
            for child in self._children
        )
        return self._choices.decide(request.request_id, num_computed_tokens, answers)

    def get_loaded_kv_cache_group_ids(self, request: Request) -> tuple[int, ...]:
        """The answer of the chosen child. An error if none is chosen."""
        match = self._choices.get(request.request_id)
        if match is None:
            raise RuntimeError(
                f"request {request.request_id!r}: the engine asks which KV cache groups its load fills, but no "
                "connector was chosen to load: the last get_num_new_matched_tokens found nothing"
            )
        chosen = self._children[match.child]
        return self._quarantine.ask(chosen, chosen.connector.get_loaded_kv_cache_group_ids, (), request)

    def update_state_after_alloc(self, request: Request, blocks: KVCacheBlocks, num_external_tokens: int) -> None:
        """Every child gets the blocks; the chosen one with the number of tokens, the others with 0."""
        loader = self._start_load(request.request_id, blocks, num_external_tokens) if num_external_tokens else None
        for child in self._children:
            own_tokens = num_external_tokens if child.place == loader else 0
            self._quarantine.ask(
                child, child.connector.update_state_after_alloc, None, request, blocks, own_tokens
            )
        if loader is not None and self._quarantine.is_off(self._children[loader]):
            self._loads.check_can_lose(loader)

    def get_external_cache_hit_sources(
        self, request: Request, num_external_tokens: int
    ) -> dict[CacheHitSource, int]:
        """The answer of the chosen child; of unknown source if none is chosen."""
        unknown = super().get_external_cache_hit_sources(request, num_external_tokens)
        match = self._choices.get(request.request_id)
        if match is None:
            return unknown
        chosen = self._children[match.child]
        ask = chosen.connector.get_external_cache_hit_sources
        return self._quarantine.ask(chosen, ask, unknown, request, num_external_tokens)

    def _start_load(self, request_id: str, blocks: KVCacheBlocks, num_tokens: int) -> int:
        match = self._choices.get(request_id)
        if match is None:
            raise RuntimeError(
                f"request {request_id!r}: the engine loads {num_tokens} tokens, but no connector was chosen to "
                "load: the last get_num_new_matched_tokens found nothing"
            )
        if match.asynchronous or self._quarantine.may_happen:
            block_ids = None
            if self._quarantine.may_happen:
                block_ids = blocks_to_load(self._vllm_config, blocks, match.num_computed_tokens, num_tokens)
            self._loads.start(request_id, PlannedLoad(match.child, match.asynchronous, block_ids))
        return match.child

    # -- a request ends ------------------------------------------------------------------------

    def request_finished(self, request: Request, block_ids: list[int]) -> Finish:
        """Call every child. True if any child holds the blocks; their parameters are merged.

        If two children set the same parameter, the error names both. While the request's load is in flight the
        answer is False, as the contract demands: the engine holds the blocks for the load, and frees them when
        the load and every child's store were reported (``last_report``).
        """
        return self._finish(request, block_ids, lambda child: child.connector.request_finished)

    def request_finished_all_groups(self, request: Request, block_ids: BlockIds) -> Finish:
        """Like ``request_finished``.

        If any child supports one group only, every child is called for that one group.
        """
        without = [child.name for child in self._children if not supports_hma(child.connector)]
        if not without:
            return self._finish(
                request, block_ids, lambda child: cast(SupportsHMA, child.connector).request_finished_all_groups
            )
        if len(block_ids) != 1:
            raise RuntimeError(
                f"request {request.request_id!r} has blocks of {len(block_ids)} KV cache groups, but these "
                f"connectors support only one: {', '.join(without)}"
            )
        return self.request_finished(request, block_ids[0])

    def register_finished_partial_tail(
        self, request: Request, block_ids: BlockIds, partial_tail_offloads: PartialTails
    ) -> bool:
        """Call every child that saves. True if any child answers so; those children's reports are awaited."""
        holders = [
            child.place
            for child in self._children
            if child.saves
            and self._quarantine.ask(
                child,
                child.connector.register_finished_partial_tail,
                False,
                request,
                block_ids,
                partial_tail_offloads,
            )
        ]
        self._holds.add(request.request_id, holders)
        return bool(holders)

    def _finish(
        self, request: Request, block_ids: Ids, method: Callable[[Child], Callable[[Request, Ids], Finish]]
    ) -> Finish:
        request_id = request.request_id
        nothing: Finish = (False, None)
        loader = self._loads.loader(request_id)
        answers = [
            self._quarantine.ask(
                child,
                method(child),
                nothing,
                request,
                # Until its load has ended there is nothing in the blocks but what the loader is writing.
                block_ids if loader is None or child.place == loader else none_of(block_ids),
            )
            for child in self._children
        ]
        stopping = self._quarantine.untold()
        self._holds.add(
            request_id,
            # The worker side of a child that is being switched off may read the blocks until it is told.
            [
                c.place
                for c, answer in zip(self._children, answers, strict=True)
                if answer[0] or c.name in stopping
            ],
        )
        self._choices.forget(request_id)
        held = bool(self._holds.holders(request_id))
        if held and self._is_outermost and loader is not None:
            # The engine holds the blocks for the load already; both reports will come, and it takes one.
            self._last_report.watch(request_id)
            held = False
        params = {name: own for name, (_, own) in zip(self._names, answers, strict=True) if own is not None}
        return held, merge_params(params)


def _get_num_new_matched_tokens(
    child: Child, request: Request, num_computed_tokens: int
) -> tuple[int | None, bool]:
    """A child's answer, checked to be a pair."""
    answer: Any = child.connector.get_num_new_matched_tokens(request, num_computed_tokens)
    if not (isinstance(answer, (tuple, list)) and len(answer) == 2):
        raise TypeError(
            f"connector {child.name!r}: get_num_new_matched_tokens answered {answer!r}, expected a pair: the "
            "number of tokens, or None, and whether the load is asynchronous"
        )
    return cast("tuple[int | None, bool]", answer)
