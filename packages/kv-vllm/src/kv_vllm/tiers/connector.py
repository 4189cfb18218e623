"""``TieredConnector``: vLLM's ``OffloadingConnector`` over a tier that the testbed judges.

It ends a history where vLLM itself goes wrong, so that no tier is blamed for it: where the scheduler's side of
``OffloadingConnector`` raises, and where its manager of tiers loads the chunks of a prompt in turns for ever,
because host memory has no room for all of them. Before 0.33 the connector counts the blocks of a session's later
turns as additional ones; that is corrected here. ``tests/schedules`` shows all three faults without this class.
"""

from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Final

from vllm.distributed.kv_transfer.kv_connector.v1.offloading.scheduler import OffloadingConnectorScheduler
from vllm.distributed.kv_transfer.kv_connector.v1.offloading_connector import OffloadingConnector

from kv_sim.guard import HistoryEnds
from kv_vllm.installed import vllm_version
from kv_vllm.tiers.watch import watches_of

MOST_QUESTIONS: Final = 40
"""How often a request is matched in a row before the history ends: fewer times than break WORK."""


class TieredConnector(OffloadingConnector):  # type: ignore[misc]
    """vLLM's connector; at its own faults the history ends."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._questions: Counter[str] = Counter()
        """For each request, how often in a row the answer was to ask again."""

    def get_num_new_matched_tokens(self, request: Any, num_computed_tokens: int) -> tuple[int | None, bool]:
        with _faults_of_vllm():
            tokens, is_async = super().get_num_new_matched_tokens(request, num_computed_tokens)
        if tokens is not None:
            del self._questions[request.request_id]
            return tokens, is_async
        self._questions[request.request_id] += 1
        if self._questions[request.request_id] == 1:
            for watch in watches_of(self.connector_scheduler.manager):
                watch.loads.clear()
        elif self._questions[request.request_id] > MOST_QUESTIONS:
            loads = sum((watch.loads for watch in watches_of(self.connector_scheduler.manager)), Counter[bool]())
            if loads[True] and not loads[False]:
                raise HistoryEnds(
                    "host memory has too little room for a prompt's chunks, so vLLM loads them into it again "
                    "and again"
                )
        return tokens, is_async

    def request_finished_all_groups(self, request: Any, block_ids: Any) -> Any:
        del self._questions[request.request_id]
        return super().request_finished_all_groups(request, block_ids)

    def build_connector_meta(self, scheduler_output: Any) -> Any:
        if vllm_version() < (0, 33):
            for new in scheduler_output.scheduled_new_reqs:
                for group in self.connector_scheduler._req_status[new.req_id].group_states:
                    group.block_ids.clear()
        with _faults_of_vllm():
            return super().build_connector_meta(scheduler_output)

    def update_connector_output(self, connector_output: Any) -> None:
        with _faults_of_vllm():
            super().update_connector_output(connector_output)

    def reset_cache(self) -> Any:
        with _faults_of_vllm():
            return super().reset_cache()


@contextmanager
def _faults_of_vllm() -> Iterator[None]:
    """A context in which an error of the connector's own code, but not of code that it calls, ends the history."""
    try:
        yield
    except (AssertionError, KeyError) as error:
        trace = error.__traceback__
        while trace is not None and trace.tb_next is not None:
            trace = trace.tb_next
        code = None if trace is None else trace.tb_frame.f_code
        if code is None or not code.co_qualname.startswith(OffloadingConnectorScheduler.__name__ + "."):
            raise
        raise HistoryEnds(f"vLLM's OffloadingConnector: {type(error).__name__} in {code.co_qualname}") from error
