"""The differences from vLLM's classes that are intended, each with its reason. Data, read by ``compare``."""

from dataclasses import dataclass
from typing import Final


@dataclass(frozen=True)
class Intended:
    """One difference."""

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
    Intended("MultiConnector", "check", "missing there", "a recount, for tests"),
    *(
        Intended("MultiConnector", name, "missing there", "ours is made of two halves")
        for name in ("scheduler_class", "worker_class", "side", "build_side")
    ),
    Intended(
        "MultiConnector",
        "request_finished",
        "parameters",
        "named as in the base class; vLLM's MultiConnector renames it, and the scheduler passes it by position",
    ),
    Intended(
        "OffloadingManager",
        "lookup_prefix",
        "missing there",
        "looks up many keys with one call; its default asks lookup for each, so vLLM's managers lose nothing",
    ),
    Intended(
        "OffloadingManager",
        "prepare_stores",
        "missing there",
        "prepares the stores of a step with one call; its default asks prepare_store for each, as above",
    ),
    Intended(
        "OffloadingManager",
        "drop",
        "missing there",
        "forgets chunks of which a load failed: vLLM asserts that none does",
    ),
    Intended(
        "OffloadingSpec",
        "extra_keys",
        "missing there",
        "a medium names its settings, so that misspelt ones are refused; vLLM's media name none",
    ),
    *_new_in_033("KVConnectorBase_V1", "missing there", *_SLEEP),
    *_new_in_033("MultiConnector", "missing there", *_SLEEP),
    *_new_in_033("contract of KVConnectorBase_V1", "missing there", *_SLEEP),
    *_new_in_033("OffloadingManager", "missing there", "config_info", "lock", "on_reset_flushed"),
    *_new_in_033("OffloadingWorker", "parameters", "submit_load"),
    *_new_in_033("OffloadingSpec", "missing there", "config_info_keys"),
    *_new_in_033("OffloadingEvent", "missing there", "metadata_only"),
    *_new_in_033("OffloadingEvent", "parameters", "__init__"),
)
