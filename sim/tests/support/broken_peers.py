"""Connectors that serve other engines, and have more to do, or keep more, the more of these there are or were."""

from typing import Any

from kv_api import Request
from kv_p2p.pulling.scheduler import P2PSchedulerSide
from kv_sim.p2p import WorldP2PConnector


class LooksAtHoldsScheduler(P2PSchedulerSide):
    """Goes through all that it ever held, in each step. It remembers no names."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.ended: list[int] = []

    def request_finished_all_groups(self, request: Request, block_ids: Any) -> tuple[bool, dict[str, Any] | None]:
        is_held, ticket = super().request_finished_all_groups(request, block_ids)
        if is_held:
            self.ended.append(request.num_tokens)
        return is_held, ticket

    def build_connector_meta(self, scheduler_output: Any) -> Any:
        for _ in range(40 * len(self.ended)):
            pass
        return super().build_connector_meta(scheduler_output)


class LooksAtHolds(WorldP2PConnector):
    scheduler_class = LooksAtHoldsScheduler


class HoldsNothingScheduler(P2PSchedulerSide):
    """Has nothing to give, whatever it is asked for."""

    def request_finished_all_groups(self, request: Request, block_ids: Any) -> tuple[bool, None]:
        self._consumer.end_request(request.request_id)
        self._producer.end_request(request.request_id)
        return False, None


class HoldsNothing(WorldP2PConnector):
    scheduler_class = HoldsNothingScheduler
