"""Tails: a request whose states an engine offers within a block, and the scheduler's side that hears of it."""

from kv_offload_configs import FULL, STATE, Blocks, Request, kv_cache_config, step

from kv_api import make_offload_key

CACHE = kv_cache_config(((FULL, 8, 0), (STATE, 8, 0), (STATE, 8, 0)), tokens_per_hash=2, hands_over=True)
TABLES = ([1, 2], [0, 4], [0, 5])
"""Of a request with up to 16 tokens."""
TAIL = [(1, 14, 12), (2, 15, 12)]
COPIES = {14: 4, 15: 5}


def request(name="a", count=13, **more):
    return Request(name, range(count), per_hash=2, **more)


def tail(asked, end=12):
    """The keys of a tail."""
    return [make_offload_key(asked.block_hashes[end // 2 - 1], group) for group in range(3)]


def begin(connector, asked, count=12, tables=TABLES, local=0):
    """The request is new in a step that computes `count` tokens."""
    connector.on_new_request(asked)
    connector.get_num_new_matched_tokens(asked, local)
    connector.update_state_after_alloc(asked, Blocks(*tables), 0)
    asked.num_computed_tokens = local
    name = asked.request_id
    meta = connector.build_connector_meta(step(new=[(name, tables)], counts={name: count}))
    asked.num_computed_tokens += count
    return meta


def go_on(connector, asked, offers=TAIL, copies=COPIES, count=1, **more):
    """It computes more, and makes offers."""
    name = asked.request_id
    output = step(more=[(name, None)], counts={name: count}, offers={name: offers}, copies=copies, **more)
    meta = connector.build_connector_meta(output)
    asked.num_computed_tokens += count
    return meta


def tail_jobs(meta):
    return [
        (job.gpu_spec.block_ids.tolist(), tuple(job.gpu_spec.group_sizes), tuple(job.gpu_spec.block_indices))
        for job in meta.store_jobs.values()
        if sum(job.gpu_spec.group_sizes[1:])
    ]
