"""vLLM's connectors, and ours inside vLLM, as subjects of the testbed, with the traits that they claim.

Of vLLM's connectors, ``ExampleConnector`` writes files, and ``OffloadingConnector`` gets ``HostCopySpec``; those
that need hardware or networks aren't here. None of them claims ``FAILURES``: ``ExampleConnector`` has no copies,
and ``OffloadingConnector`` asserts that every job succeeds.
"""

from dataclasses import replace
from typing import Any, Final

from kv_sim.examples.catalogue import NOT_EVICTED, P2P, several
from kv_sim.subject import OF_SEVERAL, Subject, Trait

_V1: Final = "vllm.distributed.kv_transfer.kv_connector.v1"


def example(name: str) -> Subject:
    """``ExampleConnector`` with a folder of its own."""
    return Subject(
        "ExampleConnector",
        f"{_V1}.example_connector",
        {"shared_storage_path": f"{{folder}}/{name}"},
        frozenset({Trait.RANKS, Trait.ZEROING}),
    )


def offloading(**options: Any) -> Subject:
    """``OffloadingConnector`` over the testbed's copies."""
    return Subject(
        "OffloadingConnector",
        f"{_V1}.offloading_connector",
        {"spec_name": "HostCopySpec", "spec_module_path": "kv_vllm.host_copy", **options},
        frozenset({Trait.GROUPS, Trait.UNEQUAL, Trait.RANKS, Trait.REPEATS, Trait.RESET}),
    )


def tiers(*listed: dict[str, Any], **options: Any) -> Subject:
    """``OffloadingConnector`` with these tiers below host memory. The tiers are judged, not the connector."""
    spec = {"spec_name": "HostTieringSpec", "spec_module_path": "kv_vllm.tiers"}
    return Subject(
        "TieredConnector",
        "kv_vllm.tiers",
        {**spec, "secondary_tiers": [*listed], **options},
        frozenset({Trait.GROUPS, Trait.RANKS, Trait.REPEATS}),
        options.get("blocks_per_chunk", 1),
    )


def multi(*children: Subject) -> Subject:
    """Over these connectors, vLLM's ``MultiConnector``."""
    return several(*children, module_path=f"{_V1}.multi_connector")


def ours(*, without: frozenset[Trait] = frozenset(), **options: Any) -> Subject:
    """Our ``OffloadingConnector``, of vLLM's class and with vLLM's KV cache groups, over the testbed's copies."""
    return Subject(
        "DrivenOffloadingConnector",
        "kv_vllm.world_offload",
        {
            "spec_name": "TensorCPUOffloadingSpec",
            "spec_module_path": "kv_vllm.world_offload",
            "load_timeout_seconds": 12,
            **options,
        },
        frozenset(Trait) - OF_SEVERAL - without,
        options.get("blocks_per_chunk", 1),
    )


OUR_SUBJECTS: Final[dict[str, Subject]] = {
    "our-offloading": ours(),
    "our-offloading-chunks": ours(blocks_per_chunk=2, offload_prompt_only=False, self_describing_kv_events=True),
    "our-offloading-held": ours(hold_blocks="always", blocks_per_chunk=3, eviction_policy="sieve"),
    "our-offloading-in-step": ours(sync_load_budget_bytes=1 << 20),
    "our-offloading-evicted": ours(
        without=NOT_EVICTED,
        hold_blocks="never",
        store_when="evicted",
        blocks_per_chunk=2,
        offload_prompt_only=False,
    ),
    "our-p2p": replace(P2P, kv_connector="DrivenP2PConnector", module_path="kv_vllm.world_p2p"),
}
"""Our connectors as vLLM loads them, with the traits that they claim in the testbed's own engine."""

VLLM_SUBJECTS: Final[dict[str, Subject]] = {
    "vllm-example": example("a"),
    "vllm-example+example": multi(example("a"), example("b")),
    "vllm-offloading": offloading(),
    "vllm-offloading-all": offloading(offload_prompt_only=False),
    "vllm-offloading-chunks": offloading(blocks_per_chunk=2, offload_prompt_only=False),
    "vllm-tiers": tiers({"type": "MemoryTier", "module_path": "kv_vllm.tiers"}, offload_prompt_only=False),
    "vllm-tiers-fs": tiers({"type": "fs", "root_dir": "{folder}", "n_read_threads": 1, "n_write_threads": 1}),
    "vllm-offloading+offloading": multi(offloading(), offloading(blocks_per_chunk=2)),
    "vllm-offloading+example": multi(offloading(), example("a")),
}
