"""vLLM's UMBPStoreConnector without what it was found to get wrong, so that a hunt finds more.

Each class does without one mistake; ``Mended`` is all of them.
"""

from kv_vllm_umbp import OnCpu
from msgspec.structs import replace as replace_event
from vllm.distributed.kv_events import BlockStored
from vllm.v1.core.kv_cache_utils import maybe_convert_block_hash


class TellsAdapters(OnCpu):
    """Events tell whose adapter a block was computed with."""

    def __init__(self, vllm_config, role, kv_cache_config):
        super().__init__(vllm_config, role, kv_cache_config)
        side = self.connector_scheduler
        if side is None:
            return
        adapters, plans_of, take = {}, side._store_plans, side.take_events

        def planned(request, *said, **named):
            plans = plans_of(request, *said, **named)
            lora = request.lora_request
            told = {"lora_id": lora.adapter_id, "lora_name": lora.lora_name} if lora else {}
            adapters.update((maybe_convert_block_hash(block), told) for block in plans.block_hashes)
            return plans

        def told():
            return [
                replace_event(event, **adapters.get(event.block_hashes[0], {}))
                if isinstance(event, BlockStored)
                else event
                for event in take()
            ]

        side._store_plans, side.take_events = planned, told


class RemovesWhatWasTold(OnCpu):
    """Of what goes it is told only what an event has stored, and once."""

    def update_connector_output(self, connector_output):
        events = connector_output.kv_cache_events
        if events is not None:
            objects = self.connector_scheduler._event_objects
            stored = {
                (group, maybe_convert_block_hash(block))
                for (group, block), record in objects.items()
                if record.published
            }
            removed = events.get_all_events()
            events.clear_events()
            events.append_events(event for event in removed if (event.group_idx, event.block_hashes[0]) in stored)
            self.connector_scheduler.invalidate_kv_events(removed)
        super().update_connector_output(connector_output)


class Mended(RemovesWhatWasTold, TellsAdapters):
    """Without all of them."""
