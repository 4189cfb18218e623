"""The contract of ``KVConnectorBase_V1`` as data: a row for each member, in the order of an engine's life.

The documentation's table is printed from it (``python -m kv_api.contract``), and tests compare it with the
classes. A member of a later phase comes after those of the earlier phases of the same turn (a start, a step, an
end), but for ``start_load_kv``, which may come after the layers (see ``worker_side``).
"""

from enum import Enum, IntEnum
from typing import Final, NamedTuple


class Side(Enum):
    """Who has the method."""

    CLASS = "class"
    SCHEDULER = "scheduler"
    WORKER = "worker"
    BOTH = "both"


class Phase(IntEnum):
    """When in an engine's life a method is called."""

    CONFIGURE = 0
    """Before there is any object."""
    START = 1
    """Once, after construction and before the first step."""
    ADMIT = 2
    """When a request is added."""
    MATCH = 3
    """While a step is scheduled: a waiting request is matched and gets blocks."""
    PLAN = 4
    """At the end of scheduling a step."""
    BEGIN = 5
    """In the worker, before the forward pass; a load that no layer waits for may also begin after it."""
    FORWARD = 6
    """Inside the forward pass, for each layer."""
    COLLECT = 7
    """In the worker, after the forward pass."""
    FINISH = 8
    """When a request ends."""
    REPORT = 9
    """In the scheduler, with the workers' joined output of a step."""
    ANY = 10
    """At any time between steps."""
    STOP = 11
    """Once, at the end."""


class Kind(Enum):
    """What the member is in Python."""

    METHOD = "method"
    CLASSMETHOD = "classmethod"
    PROPERTY = "property"


class Member(NamedTuple):
    """One row: a public member of the connector class."""

    name: str
    side: Side
    phase: Phase
    since: str
    """The first examined vLLM version that has it."""
    abstract: bool = False
    kind: Kind = Kind.METHOD
    often: str = "once"
    """How often it is called: ``once``, ``step`` (once a step), ``layer``, ``request``, ``any``."""


_S, _W, _B, _C = Side.SCHEDULER, Side.WORKER, Side.BOTH, Side.CLASS
_CM, _P = Kind.CLASSMETHOD, Kind.PROPERTY
_X = Phase

CONTRACT: Final[tuple[Member, ...]] = (
    Member("get_required_kvcache_layout", _C, _X.CONFIGURE, "0.10.1", kind=_CM),
    Member("requires_piecewise_for_cudagraph", _C, _X.CONFIGURE, "0.17", kind=_CM),
    Member("supports_sleep_mode", _C, _X.CONFIGURE, "0.33", kind=_CM),
    Member("build_prom_metrics", _C, _X.CONFIGURE, "0.11.1", kind=_CM),
    Member("role", _B, _X.ANY, "0.8.5", kind=_P, often="any"),
    Member("get_mem_pool_context", _W, _X.START, "0.31"),
    Member("register_kv_caches", _W, _X.START, "0.9.1"),
    Member("set_host_xfer_buffer_ops", _W, _X.START, "0.10.1"),
    Member("get_handshake_metadata", _W, _X.START, "0.11.1"),
    Member("reset_capture_state", _W, _X.START, "0.30", often="any"),
    Member("bind_kv_cache_manager", _S, _X.START, "0.30"),
    Member("bind_gpu_block_pool", _S, _X.START, "0.22"),
    Member("get_finished_count", _S, _X.START, "0.11.0"),
    Member("set_xfer_handshake_metadata", _S, _X.START, "0.11.1"),
    Member("set_xfer_handshake_metadata_pp_aware", _S, _X.START, "0.23"),
    Member("requires_kv_delivery", _S, _X.ANY, "0.27", kind=_P, often="any"),
    Member("supports_divergent_local_hybrid_hits", _S, _X.ANY, "0.28", kind=_P, often="any"),
    Member("on_new_request", _S, _X.ADMIT, "0.22", often="request"),
    Member("get_num_new_matched_tokens", _S, _X.MATCH, "0.8.5", abstract=True, often="any"),
    Member("get_loaded_kv_cache_group_ids", _S, _X.MATCH, "0.32", often="any"),
    Member("update_state_after_alloc", _S, _X.MATCH, "0.8.5", abstract=True, often="any"),
    Member("get_external_cache_hit_sources", _S, _X.MATCH, "0.32", often="any"),
    Member("build_connector_meta", _S, _X.PLAN, "0.8.5", abstract=True, often="step"),
    Member("handle_preemptions", _W, _X.BEGIN, "0.14", often="step"),
    Member("bind_connector_metadata", _W, _X.BEGIN, "0.8.5", often="step"),
    Member("has_connector_metadata", _W, _X.ANY, "0.11.1", often="any"),
    Member("start_load_kv", _W, _X.BEGIN, "0.8.5", abstract=True, often="step"),
    Member("wait_for_layer_load", _W, _X.FORWARD, "0.8.5", abstract=True, often="layer"),
    Member("save_kv_layer", _W, _X.FORWARD, "0.8.5", abstract=True, often="layer"),
    Member("finish_forward", _W, _X.COLLECT, "0.30", often="step"),
    Member("wait_for_save", _W, _X.COLLECT, "0.8.5", abstract=True, often="step"),
    Member("get_transfer_results", _W, _X.COLLECT, "0.30", often="step"),
    Member("get_finished", _W, _X.COLLECT, "0.9.1", often="step"),
    Member("get_block_ids_with_load_errors", _W, _X.COLLECT, "0.11.1", often="step"),
    Member("get_kv_connector_stats", _B, _X.COLLECT, "0.11.0", often="step"),
    Member("get_kv_connector_kv_cache_events", _W, _X.COLLECT, "0.13", often="step"),
    Member("build_connector_worker_meta", _W, _X.COLLECT, "0.18", often="step"),
    Member("clear_connector_metadata", _W, _X.COLLECT, "0.8.5", often="step"),
    Member("request_finished", _S, _X.FINISH, "0.9.1", often="request"),
    Member("register_finished_partial_tail", _S, _X.FINISH, "0.30", often="request"),
    Member("update_connector_output", _S, _X.REPORT, "0.10.1", often="step"),
    Member("take_events", _S, _X.REPORT, "0.10.2", often="step"),
    Member("build_kv_connector_stats", _C, _X.REPORT, "0.11.0", kind=_CM, often="any"),
    Member("has_pending_push_work", _S, _X.ANY, "0.24", often="any"),
    Member("has_pending_block_frees", _S, _X.ANY, "0.30", often="any"),
    Member("reset_cache", _S, _X.ANY, "0.13", often="any"),
    Member("unregister_kv_caches", _W, _X.ANY, "0.33", often="any"),
    Member("restore_kv_caches", _W, _X.ANY, "0.33", often="any"),
    Member("shutdown", _B, _X.STOP, "0.10.2"),
)
"""Every public member of ``KVConnectorBase_V1`` at 0.33.0."""

HMA_CONTRACT: Final[tuple[Member, ...]] = (
    Member("request_finished_all_groups", _S, _X.FINISH, "0.11.1", abstract=True, often="request"),
)
"""What ``SupportsHMA`` adds; it is called in place of ``request_finished``."""


def member(name: str) -> Member:
    """The row of ``name``."""
    for row in (*CONTRACT, *HMA_CONTRACT):
        if row.name == name:
            return row
    raise KeyError(f"no member {name!r} in the contract")


def markdown_table() -> str:
    """The contract as a Markdown table, a row for each member in the order of an engine's life."""
    lines = ["| member | side | phase | called | abstract | since vLLM |", "|---|---|---|---|---|---|"]
    for row in sorted((*CONTRACT, *HMA_CONTRACT), key=lambda m: m.phase):
        mark = "" if row.kind is Kind.METHOD else f" ({row.kind.value})"
        abstract = "yes" if row.abstract else ""
        lines.append(
            f"| `{row.name}`{mark} | {row.side.value} | {row.phase.name.lower()} | {row.often} "
            f"| {abstract} | {row.since} |"
        )
    return "\n".join(lines)


if __name__ == "__main__":
    print(markdown_table())  # noqa: T201 - this is what the module is run for
