"""kv-p2p's connector as one that leaves no tickets: both halves know a transfer by a name from the router."""

from typing import Any, Final

from kv_api import BlockIds, Request
from kv_p2p import P2PSchedulerSide
from kv_sim.p2p import WorldP2PConnector
from kv_sim.subject import TICKET

BULLETIN: Final[dict[tuple[str, str], dict[str, Any]]] = {}
"""What each engine holds, by engine and name, as its bootstrap server would say it."""


class NamedSide(P2PSchedulerSide):
    """Tells nobody what it holds but who asks for it by name."""

    def on_new_request(self, request: Request) -> None:
        params = request.kv_transfer_params or {}
        if params.get(TICKET):
            request.kv_transfer_params = self.look_up(params["remote_engine_id"], params["transfer_id"])
        super().on_new_request(request)
        request.kv_transfer_params = params

    def look_up(self, engine_id: str, name: str) -> dict[str, Any]:
        return BULLETIN[engine_id, name]

    def request_finished_all_groups(
        self, request: Request, block_ids: BlockIds
    ) -> tuple[bool, dict[str, Any] | None]:
        is_held, ticket = super().request_finished_all_groups(request, block_ids)
        if ticket:
            engine_id, name = self._kv_transfer_config.engine_id, (request.kv_transfer_params or {})["transfer_id"]
            assert engine_id is not None
            BULLETIN[engine_id, name] = ticket
        return is_held, None


class ByName(WorldP2PConnector):
    leaves_tickets = False
    scheduler_class = NamedSide


class _Newest(NamedSide):
    def look_up(self, engine_id: str, name: str) -> dict[str, Any]:
        return [ticket for (at, _), ticket in BULLETIN.items() if at == engine_id][-1]


class NewestWhateverItsName(ByName):
    scheduler_class = _Newest


class _KeepsSilent(NamedSide):
    def request_finished_all_groups(
        self, request: Request, block_ids: BlockIds
    ) -> tuple[bool, dict[str, Any] | None]:
        super().request_finished_all_groups(request, block_ids)
        return False, None


class HoldsNothing(ByName):
    """It says that it lets go of everything."""

    scheduler_class = _KeepsSilent
