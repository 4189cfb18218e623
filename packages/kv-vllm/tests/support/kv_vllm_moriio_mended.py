"""vLLM's MoRIIOConnector without what it was found to get wrong, so that a hunt finds more.

Each class does without one mistake; ``Mended`` is all of them.
"""

from kv_vllm_moriio import OnCpu
from kv_vllm_who_loads import KnowsWhoLoads
from vllm.distributed.kv_transfer.kv_connector.v1.moriio.moriio_common import MoRIIOMode


class AsksForTickets(OnCpu):
    """Nothing is found for who has no ticket, or has used it."""

    def get_num_new_matched_tokens(self, request, num_computed_tokens):
        params = request.kv_transfer_params or {}
        if not params.get("do_remote_prefill"):
            return 0, False
        return super().get_num_new_matched_tokens(request, num_computed_tokens)


OVER = -1
"""How often a task was tried that isn't to be done any more."""


class Forgets(OnCpu):
    """What was to be pushed can be forgotten."""

    def register_kv_caches(self, kv_caches):
        super().register_kv_caches(kv_caches)
        writer = self.connector_worker._writer
        execute = writer._execute_write_task
        writer._execute_write_task = lambda task: None if task.retried == OVER else execute(task)

    def forget(self, transfers):
        """Whatever waits of these."""
        writer = self.connector_worker._writer
        for transfer in transfers:
            writer._clear_transfer_state(transfer)
        for task in (*writer._deferred_tasks, *writer._write_task_q):
            if task.transfer_id in transfers:
                task.retried = OVER


def pushes(connector):
    """Whether the producer does."""
    return connector.mode is MoRIIOMode.WRITE


class MovesWhatIsLacked(OnCpu):
    """Blocks that were found in the engine's own cache are neither read again nor written."""

    def update_state_after_alloc(self, request, blocks, num_external_tokens):
        scheduler, name = self.connector_scheduler, request.request_id
        tokens, size = request.num_prompt_tokens, scheduler.block_size
        known = (tokens - num_external_tokens - (not pushes(self))) // size

        def send(block_notify_list, **said):
            listed = [0] * known + block_notify_list[known:] if num_external_tokens else block_notify_list
            type(scheduler).send_notify_block(scheduler, block_notify_list=listed, **said)

        scheduler.send_notify_block = send
        super().update_state_after_alloc(request, blocks, num_external_tokens)
        if not num_external_tokens or name not in scheduler._reqs_need_recv:
            return
        lacks = -(-tokens // size) - known
        loads = slice(-lacks, -1 if tokens % size == 1 else None)  # the last token is computed
        _, local = scheduler._reqs_need_recv[name]
        params = scheduler._req_kv_params[name]
        scheduler._reqs_need_recv[name] = request, [group[loads] for group in local]
        params["remote_block_ids"] = [group[loads] for group in params["remote_block_ids"]]

    def register_kv_caches(self, kv_caches):
        super().register_kv_caches(kv_caches)
        worker = self.connector_worker
        compute = worker._compute_block_transfer_offsets

        def offsets(layer, ours, theirs, *args, **said):
            pairs = [pair for pair in zip(ours, theirs, strict=False) if pair[1] or not pushes(self)]
            return compute(layer, [one for one, _ in pairs], [one for _, one in pairs], *args, **said)

        worker._compute_block_transfer_offsets = offsets


class SaysThatNothingIsTaken(OnCpu):
    """Who is to be pushed, and takes nothing, lets the producer know, in words that it understands."""

    def update_state_after_alloc(self, request, blocks, num_external_tokens):
        params = request.kv_transfer_params or {}
        if pushes(self) and params.get("do_remote_prefill") and not num_external_tokens:
            with self.process.at_work():
                self.connector_scheduler._release_write_prefill_blocks(request.request_id, params)
            params["do_remote_prefill"] = False
        super().update_state_after_alloc(request, blocks, num_external_tokens)


class LeavesNullBlocks(OnCpu):
    """What has slid out of a window isn't read."""

    def update_state_after_alloc(self, request, blocks, num_external_tokens):
        super().update_state_after_alloc(request, blocks, num_external_tokens)
        scheduler, name = self.connector_scheduler, request.request_id
        if name not in scheduler._reqs_need_recv or not num_external_tokens:
            return
        params, (_, local) = scheduler._req_kv_params[name], scheduler._reqs_need_recv[name]
        pairs = [
            [pair for pair in zip(ours, theirs, strict=True) if pair[0]]
            for ours, theirs in zip(local, params["remote_block_ids"], strict=True)
        ]
        scheduler._reqs_need_recv[name] = request, [[ours for ours, _ in group] for group in pairs]
        params["remote_block_ids"] = [[theirs for _, theirs in group] for group in pairs]


class MissesNoBlock(OnCpu):
    """A ticket is of no use if a block isn't held that is in the window of the prompt's last token."""

    def get_num_new_matched_tokens(self, request, num_computed_tokens):
        params, size = request.kv_transfer_params or {}, self.connector_scheduler.block_size
        tokens = request.num_prompt_tokens
        groups = self._kv_cache_config.kv_cache_groups
        for group, blocks in zip(groups, params.get("remote_block_ids") or (), strict=False):
            window = getattr(group.kv_cache_spec, "sliding_window", None) or tokens
            needed = -(-tokens // size) - max(0, tokens - window) // size
            if 0 in blocks[-needed:]:
                return 0, False
        return super().get_num_new_matched_tokens(request, num_computed_tokens)


class ForgetsWhatIsNotHeld(Forgets):
    """Of who ends, and isn't held, nothing is known any more, and nothing is pushed."""

    def __init__(self, vllm_config, role, kv_cache_config):
        super().__init__(vllm_config, role, kv_cache_config)
        self._dropped = set()

    def request_finished_all_groups(self, request, block_ids):
        answer = super().request_finished_all_groups(request, block_ids)
        scheduler, name = self.connector_scheduler, request.request_id
        if scheduler.is_producer and not answer[0] and name in scheduler.request_id_to_transfer_id:
            self._dropped.add(scheduler.request_id_to_transfer_id[name])
            scheduler.unmap_request_id(name)
            for waits in (scheduler._reqs_need_save, scheduler._reqs_need_pending_save, scheduler._req_kv_params):
                waits.pop(name, None)
        return answer

    def build_connector_meta(self, scheduler_output):
        meta = super().build_connector_meta(scheduler_output)
        meta.dropped, self._dropped = self._dropped, set()
        return meta

    def start_load_kv(self, forward_context, **kwargs):
        super().start_load_kv(forward_context, **kwargs)
        dropped = self._get_connector_metadata().dropped
        for transfer in dropped:
            self.connector_worker.moriio_wrapper._mark_transfer_terminal_locked(transfer)
        self.forget(dropped)


class PushesAnew(Forgets):
    """Of who is preempted after his last chunk was scheduled what is pushed is what he computes anew."""

    def build_connector_meta(self, scheduler_output):
        meta = super().build_connector_meta(scheduler_output)
        transfers = self.connector_scheduler.request_id_to_transfer_id
        preempted = scheduler_output.preempted_req_ids or ()
        meta.begun_anew = {transfers[name] for name in preempted if name in transfers}
        return meta

    def start_load_kv(self, forward_context, **kwargs):
        self.forget(self._get_connector_metadata().begun_anew)
        super().start_load_kv(forward_context, **kwargs)


class HearsOfTheEnd(KnowsWhoLoads, OnCpu):
    """Of who is aborted while it is pushed it is heard when that has ended: its blocks are in use until then."""

    def request_finished_all_groups(self, request, block_ids):
        answer = super().request_finished_all_groups(request, block_ids)
        name = request.request_id
        if not pushes(self):
            self._loading.discard(name)
        elif name in self._loading:
            self.connector_scheduler.map_request_id(name, request.kv_transfer_params["transfer_id"])
        return answer

    def update_connector_output(self, connector_output):
        super().update_connector_output(connector_output)
        scheduler = self.connector_scheduler
        for name in connector_output.finished_recving or ():
            scheduler.transfer_id_to_request_id.pop(scheduler.request_id_to_transfer_id.pop(name, None), None)


class Mended(
    HearsOfTheEnd,
    PushesAnew,
    ForgetsWhatIsNotHeld,
    MissesNoBlock,
    LeavesNullBlocks,
    SaysThatNothingIsTaken,
    MovesWhatIsLacked,
    AsksForTickets,
):
    """Without all of them."""
