"""The differences from vLLM's classes that are intended, each with its reason. Data, read by ``compare``."""

from dataclasses import dataclass
from typing import Final


@dataclass(frozen=True)
class Intended:
    """A difference that is on purpose, and why."""

    owner: str
    member: str
    aspect: str
    reason: str
    before: tuple[int, int] | None = None
    """Only with a vLLM older than this."""

    def holds_for(self, version: tuple[int, int]) -> bool:
        """Whether the row is about this version of vLLM."""
        return self.before is None or version < self.before

    @property
    def what(self) -> tuple[str, str, str]:
        """The difference that the row is about."""
        return self.owner, self.member, self.aspect


def _new_in_033(owner: str, aspect: str, *members: str) -> tuple[Intended, ...]:
    return tuple(Intended(owner, member, aspect, "new in 0.33", before=(0, 33)) for member in members)


def _only_here(owner: str, reason: str, *members: str) -> tuple[Intended, ...]:
    return tuple(Intended(owner, member, "missing there", reason) for member in members)


def _more_parameters(owner: str, reason: str, *members: str) -> tuple[Intended, ...]:
    return tuple(Intended(owner, member, "parameters", reason) for member in members)


_PATHS: Final = "allow_module_paths=False refuses to import what a configuration names"
_SLEEP: Final = ("restore_kv_caches", "supports_sleep_mode", "unregister_kv_caches")

INTENDED: Final[tuple[Intended, ...]] = (
    Intended(
        "KVConnectorBase_V1",
        "__init__",
        "parameters",
        "kv_cache_config may be left out, as before vLLM 0.21",
    ),
    Intended(
        "MultiConnector",
        "__init__",
        "parameters",
        "kv_cache_config may be left out, as before vLLM 0.21",
    ),
    *_only_here("MultiConnector", "a recount, for tests", "check"),
    *_only_here(
        "OffloadingWorker",
        "asked by kv-offload alone, and only where it is there",
        *("let_go", "num_chunks", "take_counts"),
    ),
    *_only_here(
        "MultiConnector",
        "ours is made of two sides",
        *("scheduler_class", "worker_class", "side", "build_side"),
    ),
    Intended(
        "MultiConnector",
        "request_finished",
        "parameters",
        "named as in the base class; vLLM's MultiConnector renames it, and the scheduler passes it by position",
    ),
    Intended(
        "KVConnectorPromMetrics",
        "observe",
        "abstract",
        "vLLM's raises NotImplementedError, when the first stats come",
    ),
    *_only_here("KVOutputAggregator", "joins reports without a runner's output around them", "aggregate_reports"),
    *_only_here("KVOutputAggregator", "a recount, for tests", "check"),
    Intended(
        "KVTransferConfig", "compute_hash", "missing here", "the key of vLLM's compiled code; ours compiles none"
    ),
    *_only_here("KVTransferConfig", "reads parsed JSON, with errors that name the place", "from_mapping"),
    *_more_parameters("KVTransferConfig", "keys that vLLM has removed are taken, and warned of", "__init__"),
    *_only_here(
        "KVConnectorFactory", "makes connectors of one generation", "create_connector_v0", "create_connector_v1"
    ),
    *(
        row
        for factory in ("KVConnectorFactory", "OffloadingSpecFactory")
        for row in (
            *_only_here(factory, "lets tests register what nobody else sees", "isolated"),
            *_only_here(factory, "finds what was installed since", "refresh_entry_points"),
        )
    ),
    *_more_parameters(
        "KVConnectorFactory", _PATHS, "create_connector", "get_connector_class", "supports_hma_config"
    ),
    *_more_parameters("OffloadingSpecFactory", _PATHS, "create_spec", "get_spec_cls"),
    Intended(
        "ensure_kv_transfer_initialized",
        "",
        "parameters",
        f"{_PATHS}; broadcast_engine_id stands for vLLM's tensor-parallel group; the layout may be left out",
    ),
    *_only_here(
        "OffloadingManager",
        "looks up many keys with one call; its default asks lookup for each, so vLLM's managers lose nothing",
        "lookup_prefix",
    ),
    *_only_here(
        "OffloadingManager",
        "prepares the stores of a step with one call; its default asks prepare_store for each, as above",
        "prepare_stores",
    ),
    *_only_here(
        "OffloadingManager", "told where stages hold different layers, which vLLM's don't agree on", "limit_chunks"
    ),
    *_only_here("OffloadingManager", "forgets chunks of which a load failed: vLLM asserts that none does", "drop"),
    *_only_here(
        "OffloadingSpec",
        "a medium names its settings, so that misspelt ones are refused; vLLM's media name none",
        "extra_keys",
    ),
    *_only_here(
        "ReqContext",
        "positions of a whole chain that nobody notes one by one",
        *("derive_offload_key_positions", "is_offload_key_before"),
    ),
    *_more_parameters(
        "OffloadingParallelConfig",
        "how many tokens in a row a rank has is part of what files are for; it has a default",
        "__init__",
    ),
    *_new_in_033("KVConnectorBase_V1", "missing there", *_SLEEP),
    *_new_in_033("MultiConnector", "missing there", *_SLEEP),
    *_new_in_033("contract of KVConnectorBase_V1", "missing there", *_SLEEP),
    *_new_in_033("OffloadingManager", "missing there", "config_info", "lock", "on_reset_flushed"),
    *_new_in_033("OffloadingWorker", "parameters", "submit_load"),
    *_new_in_033("OffloadingSpec", "missing there", "config_info_keys"),
    *_new_in_033("OffloadingEvent", "parameters", "__init__"),
    *_new_in_033("KVOutputAggregator", "missing there", "ft_defer_kv_connector_outputs"),
    *(
        row
        for owner in ("BlockStored", "OffloadingGaugeMetadata", "OffloadingGroupConfig", "OffloadingModelConfig")
        for row in _new_in_033(owner, "parameters", "__init__")
    ),
)
