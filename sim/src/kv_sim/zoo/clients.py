"""Planted where a client's ``kv_transfer_params`` are read, in kv-offload's connector and in kv-p2p's."""

from typing import Any

from kv_api import Request
from kv_p2p import P2PSchedulerSide
from kv_sim.offload.host_memory import TimedOffloadingConnector
from kv_sim.p2p import WorldP2PConnector
from kv_sim.subject import TICKET


class TakesItForAnObject(TimedOffloadingConnector):
    """It reads a wish from a client's ``kv_transfer_params`` without checking that they are an object."""

    def on_new_request(self, request: Request) -> None:
        params: Any = request.kv_transfer_params
        if params and params.get("max_load_tokens") == 0:
            return
        super().on_new_request(request)


class _TrustsWords(P2PSchedulerSide):
    def on_new_request(self, request: Request) -> None:
        params: Any = request.kv_transfer_params
        is_ticket = isinstance(params, dict) and params.get(TICKET)
        if is_ticket and params["remote_num_tokens"] > request.num_prompt_tokens:
            return
        super().on_new_request(request)


class TrustsWordsOfTickets(WorldP2PConnector):
    """It compares a ticket with the prompt before checking that the ticket has a valid length."""

    scheduler_class = _TrustsWords
