"""Calls of the scheduler's side, and what is expected of them, in few words."""

from kv_offload_configs import Blocks, step

from kv_api import GPULoadStoreSpec, KVConnectorOutput, make_offload_key
from kv_offload import OffloadingConnectorMetadata, OffloadingWorkerMetadata


def gpu(*blocks, index=0):
    return GPULoadStoreSpec(blocks, (len(blocks),), (index,))


def plan(loads=None, stores=None, flush=()):
    return OffloadingConnectorMetadata(loads or {}, stores or {}, set(flush))


def key(request, chunk, per_chunk=1, group=0):
    return make_offload_key(request.block_hashes[(chunk + 1) * per_chunk - 1], group)


def keys(request, count, per_chunk=1):
    return [key(request, chunk, per_chunk) for chunk in range(count)]


def report(connector, **jobs):
    """`done`, `failed`, `unended`, `late`: ids of jobs."""

    def counts(name):
        return dict.fromkeys(jobs.get(name, ()), 1)

    meta = OffloadingWorkerMetadata(counts("done"), counts("failed"), counts("unended"), counts("late"))
    connector.update_connector_output(
        KVConnectorOutput(kv_connector_worker_meta=meta, invalid_block_ids=set(jobs.get("invalid", ())))
    )
    connector.side.check()


def arrive(connector, request):
    """A request arrives."""
    connector.on_new_request(request)
    return request


def begin_load(connector, request, table, tokens):
    """Allocate blocks for tokens that were promised, and plan a step that loads them alone."""
    connector.update_state_after_alloc(request, Blocks(table), tokens)
    return connector.build_connector_meta(step())


def run(connector, request, table, count=None, local=0):
    """Admit a request without a load and let it compute."""
    connector.get_num_new_matched_tokens(request, local)
    connector.update_state_after_alloc(request, Blocks(table), 0)
    request.num_computed_tokens = local
    count = count or request.num_tokens - local
    meta = connector.build_connector_meta(
        step(new=[(request.request_id, (table,))], counts={request.request_id: count})
    )
    request.num_computed_tokens += count
    return meta


def fill(manager, request, count, per_chunk=1):
    """Make chunks resident."""
    for chunk in range(count):
        manager.resident[key(request, chunk, per_chunk)] = chunk


def ask(connector, manager, request, chunks):
    """A request arrives of which so many chunks are in the medium: how much of it can be loaded."""
    fill(manager, request, chunks)
    return connector.get_num_new_matched_tokens(arrive(connector, request), 0)
