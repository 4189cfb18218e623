"""The subjects that come with the testbed, by the names that the command line knows."""

from collections.abc import Mapping
from dataclasses import replace
from math import lcm
from types import MappingProxyType
from typing import Any, Final

from kv_sim.subject import OF_PEERS, OF_SEVERAL, Subject, Trait

MEMORY: Final = Subject(
    "MemoryConnector",
    "kv_sim.examples.memory",
    traits=frozenset(
        {
            Trait.GROUPS,
            Trait.RANKS,
            Trait.REPEATS,
            Trait.ZEROING,
            Trait.RESET,
            Trait.SLEEP,
            Trait.KEEPS,
            Trait.EVENTS,
            Trait.CLIENTS,
            Trait.IMAGES,
        }
    ),
)
SHARED: Final = Subject(
    "SharedConnector",
    "kv_sim.examples.shared",
    {"store": "{folder}"},
    (MEMORY.traits - {Trait.EVENTS}) | {Trait.STRANGERS},
    evicts_oldest=True,
    engines=2,
    shares_store=True,
)
LATER: Final = Subject(
    "LaterConnector",
    "kv_sim.examples.later",
    traits=frozenset(
        {
            *(Trait.RANKS, Trait.FAILURES, Trait.REPEATS, Trait.ZEROING),
            *(Trait.RESET, Trait.SLEEP, Trait.KEEPS, Trait.CLIENTS, Trait.IMAGES),
        }
    ),
)
PATIENT: Final = Subject(
    "PatientConnector",
    "kv_sim.examples.patient",
    traits=LATER.traits - {Trait.ZEROING, Trait.RESET},
)
LAYERWISE: Final = Subject("LayerwiseConnector", "kv_sim.examples.layerwise", traits=PATIENT.traits)
FLAKY: Final = Subject("FlakyConnector", "kv_sim.examples.flaky", traits=LATER.traits - {Trait.KEEPS})
"""Raises, so it is driven only as the child of a MultiConnector, which then switches it off."""
FLAKY_BUSY: Final = replace(FLAKY, extra_config={"breaks": "busy"})
FLAKY_PATIENT: Final = Subject(
    "FlakyPatientConnector", "kv_sim.examples.flaky", traits=PATIENT.traits - {Trait.KEEPS}
)
HOLDING: Final = Subject("HoldingConnector", "kv_sim.examples.holding", traits=LATER.traits - {Trait.KEEPS})
"""Reports requests twice, so it, too, is driven only as the child of a MultiConnector."""


def several(
    *children: Subject,
    kv_connector: str = "MultiConnector",
    module_path: str | None = "kv_multi",
    settings: Mapping[str, str] = MappingProxyType({}),
) -> Subject:
    """A MultiConnector over these, with its own ``settings``.

    It claims what all of them claim, and of peers what those do that serve some; but only one of several would
    tell all events.
    """
    serve_peers = any(child.serves_peers for child in children)
    connectors = [
        {
            "kv_connector": child.kv_connector,
            "kv_connector_module_path": child.module_path,
            "kv_connector_extra_config": dict(child.extra_config),
        }
        for child in children
    ]
    claims = [child.traits | (frozenset() if child.serves_peers else OF_PEERS) for child in children]
    traits = frozenset.intersection(*claims) - {Trait.EVENTS} - (frozenset() if serve_peers else OF_PEERS)
    grain, times = lcm(*(child.blocks_per_chunk for child in children)), max(c.keeps_from for c in children)
    return Subject(
        kv_connector=kv_connector,
        module_path=module_path,
        extra_config={"connectors": connectors, **settings},
        traits=traits,
        blocks_per_chunk=grain,
        keeps_from=times,
        serves_peers=serve_peers,
        engines=max(child.engines for child in children),
    )


def offloading(*, without: frozenset[Trait] = frozenset(), **extra_config: Any) -> Subject:
    """kv-offload's connector over kv-offload-cpu, with these settings."""
    return Subject(
        kv_connector="TimedOffloadingConnector",
        module_path="kv_sim.offload",
        extra_config={
            "spec_name": "WorldCPUOffloadingSpec",
            "spec_module_path": "kv_sim.offload",
            "load_timeout_seconds": 12,
            **extra_config,
        },
        traits=frozenset(Trait) - OF_SEVERAL - without,
        blocks_per_chunk=extra_config.get("blocks_per_chunk", 1),
        keeps_from=max(1, extra_config.get("store_threshold", 1)),
        evicts_oldest=extra_config.get("eviction_policy", "lru") == "lru",
    )


OFFLOAD: Final = offloading()
OFFLOAD_CHUNKS: Final = offloading(
    blocks_per_chunk=2, eviction_policy="arc", offload_prompt_only=False, self_describing_kv_events=True
)
OFFLOAD_IN_STEP: Final = offloading(sync_load_budget_bytes=1 << 20, eviction_policy="s3fifo")
OFFLOAD_HELD: Final = offloading(hold_blocks="always", blocks_per_chunk=3, eviction_policy="sieve")


def fenced(**extra_config: Any) -> Subject:
    """The same with stores while a request runs. Its fences come too late if new blocks are zeroed before them."""
    return offloading(without=frozenset({Trait.ZEROING}), hold_blocks="never", **extra_config)


OFFLOAD_FENCED: Final = fenced()
OFFLOAD_IN_STEP_FENCED: Final = fenced(sync_load_budget_bytes=1 << 20, self_describing_kv_events=True)
OFFLOAD_HASTY: Final = offloading(load_timeout_seconds=1, store_timeout_seconds=1)
"""Gives up at once what is lost, which may be found later."""
OFFLOAD_AGAIN: Final = fenced(store_threshold=3)
"""Stores a block when it is computed for the third time."""

NOT_EVICTED: Final = frozenset(
    {Trait.ZEROING, Trait.GROUPS, Trait.STATES, Trait.UNEQUAL, Trait.KEEPS, Trait.EVENTS}
)
"""What a connector can't claim that stores when blocks are given away: what is on the GPU isn't kept, and single
blocks of windows and states are given away before."""
OFFLOAD_EVICTED: Final = offloading(
    without=NOT_EVICTED, hold_blocks="never", store_when="evicted", offload_prompt_only=False
)

OFFLOAD_FILE: Final = Subject(
    "TimedOffloadingConnector",
    "kv_sim.offload",
    {"spec_name": "WorldFileOffloadingSpec", "spec_module_path": "kv_sim.offload"},
    frozenset(Trait) - OF_SEVERAL - {Trait.LOSSES, Trait.COUNTS},
    evicts_oldest=True,
)
"""A job may be several copies. Each has to be heard of for the next one to begin, and of a job that failed some
may have moved their bytes."""

OFFLOAD_FILE_SHARED: Final = replace(
    OFFLOAD_FILE,
    extra_config={**OFFLOAD_FILE.extra_config, "file_dir": "{folder}", "file_shared": True},
    traits=(OFFLOAD_FILE.traits | {Trait.STRANGERS}) - {Trait.EVENTS},
    shares_store=True,
    engines=2,
)
"""Each of two engines reads what the other one stored. What it couldn't load from there it doesn't ask for again,
and the other one's events don't say so."""

_ALL: Final = 1 << 20
"""More blocks than a world has. An engine that also pulls would hold a part of its own, and refuse the rest."""
P2P: Final = Subject(
    "WorldP2PConnector",
    "kv_sim.p2p",
    {"hold_seconds": 5, "pull_seconds": 6, "max_held_blocks": _ALL},
    frozenset(
        {
            Trait.GROUPS,
            Trait.UNEQUAL,
            Trait.RANKS,
            Trait.FAILURES,
            Trait.LOSSES,
            Trait.REPEATS,
            Trait.ZEROING,
            Trait.RESET,
            Trait.HOLDS,
            Trait.TICKETS,
            Trait.CLIENTS,
            Trait.IMAGES,
        }
    ),
    serves_peers=True,
)
P2P_HASTY: Final = replace(P2P, extra_config={**P2P.extra_config, "hold_seconds": 1, "pull_seconds": 1})
"""Gives up at once what is lost, which may be found later."""
P2P_TWO: Final = replace(P2P, engines=2, traits=P2P.traits | {Trait.STRANGERS})
P2P_LASTING: Final = replace(
    P2P, extra_config={**P2P.extra_config, "hold_seconds": 1 << 20}, traits=P2P.traits - {Trait.TICKETS}
)
"""Holds end by a pull, or when nobody will come, and not by time: so its router has to be trusted."""
P2P_CROWDED: Final = replace(
    P2P, extra_config={"hold_seconds": 1 << 20, "pull_seconds": 6}, traits=P2P.traits - {Trait.HOLDS}
)
"""Holds don't end by time, and its router asks for more of them than there is room for: so it can't hold all."""

LONGEST: Final = {"load_policy": "longest"}
BEFORE_FILES_SHARED: Final = replace(
    several(OFFLOAD, OFFLOAD_FILE_SHARED, settings=LONGEST), shares_store=True, engines=2
)
"""Host memory of each engine alone, before files that both read: as `kv-sim size` recommends it."""


def _has_locks_of_open_files() -> bool:
    """Whether this system has those by which engines that share files keep them: Linux has."""
    try:
        import fcntl
    except ImportError:
        return False
    return hasattr(fcntl, "F_OFD_GETLK")


SURVIVES: Final = {"on_child_error": "quarantine"}

SUBJECTS: Final[dict[str, Subject]] = {
    "memory": MEMORY,
    "later": LATER,
    "patient": PATIENT,
    "memory+later": several(MEMORY, LATER),
    "later+memory": several(LATER, MEMORY),
    "later+later": several(LATER, LATER),
    "later+patient": several(LATER, PATIENT),
    "patient+memory": several(PATIENT, MEMORY),
    "longest": several(LATER, MEMORY, settings=LONGEST),
    "later+flaky": several(LATER, FLAKY, settings=SURVIVES),
    "flaky-busy+later": several(FLAKY_BUSY, LATER, settings=SURVIVES),
    "flaky-patient+memory": several(FLAKY_PATIENT, MEMORY, settings=SURVIVES),
    "later+holding": several(LATER, HOLDING),
    "layerwise": LAYERWISE,
    "layerwise+later": several(LAYERWISE, LATER),
    "layerwise+patient": several(LAYERWISE, PATIENT),
    "offload": OFFLOAD,
    "offload-chunks": OFFLOAD_CHUNKS,
    "offload-in-step": OFFLOAD_IN_STEP,
    "offload-held": OFFLOAD_HELD,
    "offload-in-step-fenced": OFFLOAD_IN_STEP_FENCED,
    "offload-again": OFFLOAD_AGAIN,
    "offload-evicted": OFFLOAD_EVICTED,
    "offload-hasty": OFFLOAD_HASTY,
    "offload-file": OFFLOAD_FILE,
    **({"offload-file-shared": OFFLOAD_FILE_SHARED} if _has_locks_of_open_files() else {}),
    "offload+offload": several(OFFLOAD_CHUNKS, OFFLOAD),
    "offload+fenced": several(OFFLOAD, OFFLOAD_FENCED),
    "offload+file": several(OFFLOAD, OFFLOAD_FILE),
    **({"offload+file-shared": BEFORE_FILES_SHARED} if _has_locks_of_open_files() else {}),
    "later+offload": several(LATER, OFFLOAD),
    "in-step+later": several(OFFLOAD_IN_STEP, LATER),
    "shared": SHARED,
    "p2p": P2P,
    "p2p-hasty": P2P_HASTY,
    "p2p-two-engines": P2P_TWO,
    "p2p-lasting": P2P_LASTING,
    "p2p+offload": several(P2P, OFFLOAD),
}
