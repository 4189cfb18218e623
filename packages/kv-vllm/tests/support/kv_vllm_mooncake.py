"""vLLM's MooncakeConnector with an end, and with mistakes in it."""

import asyncio

from vllm.distributed.kv_transfer.kv_connector.v1.mooncake.mooncake_connector import MooncakeConnector

from kv_vllm.driver.surroundings.ranks import at_work


async def end_all_others():
    """End what a loop has under way."""
    others = asyncio.all_tasks() - {asyncio.current_task()}
    for task in others:
        task.cancel()
    await asyncio.gather(*others, return_exceptions=True)


class Ends(MooncakeConnector):
    """It ends what its worker has begun.

    vLLM's has no ``shutdown``, and that of its worker waits for ever for the socket on which it listens.
    """

    def shutdown(self):
        worker, self.connector_worker = self.connector_worker, None
        if worker is None:
            return
        for name in ("sender_loop", "receiver_loop"):
            if (loop := getattr(worker, name, None)) is not None:
                asyncio.run_coroutine_threadsafe(end_all_others(), loop).result()
        with at_work(worker.tp_rank, worker.tp_size):
            worker.shutdown()
        worker.shutdown = lambda: None  # once is enough


class SwapsBlocks(Ends):
    """What is sent is in another order than that of the prompt."""

    def request_finished_all_groups(self, request, block_ids):
        return super().request_finished_all_groups(request, tuple(table[::-1] for table in block_ids))


class TakesNothing(Ends):
    """Whoever comes with a ticket computes what another engine holds for it, and doesn't say so."""

    def get_num_new_matched_tokens(self, request, num_computed_tokens):
        return 0, False
