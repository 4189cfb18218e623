"""The subjects that come with the testbed: what is driven, and what each of them is not expected to withstand."""

from typing import Any, TypeAlias

import pytest

from kv_api import ConfigError
from kv_sim.config import WorldConfig
from kv_sim.examples.catalogue import SUBJECTS, offloading, several
from kv_sim.subject import Subject, Trait

Connector: TypeAlias = tuple[str, dict[str, Any]]
"""Its class, and what is set."""

MEMORY: Connector = ("MemoryConnector", {})
LATER: Connector = ("LaterConnector", {})
PATIENT: Connector = ("PatientConnector", {})
FLAKY: Connector = ("FlakyConnector", {})
FLAKY_PATIENT: Connector = ("FlakyPatientConnector", {})
LAYERWISE: Connector = ("LayerwiseConnector", {})
HOLDING: Connector = ("HoldingConnector", {})
P2P: Connector = ("WorldP2PConnector", {"hold_seconds": 5, "pull_seconds": 6, "max_held_blocks": 1 << 20})
P2P_HASTY: Connector = ("WorldP2PConnector", {"hold_seconds": 1, "pull_seconds": 1, "max_held_blocks": 1 << 20})
P2P_LASTING: Connector = (
    "WorldP2PConnector",
    {"hold_seconds": 1 << 20, "pull_seconds": 6, "max_held_blocks": 1 << 20},
)
IN_STEP = {"sync_load_budget_bytes": 1 << 20, "eviction_policy": "s3fifo"}
CHUNKS = {
    "blocks_per_chunk": 2,
    "eviction_policy": "arc",
    "offload_prompt_only": False,
    "self_describing_kv_events": True,
}


def offload(**settings: Any) -> Connector:
    spec = {"spec_name": "WorldCPUOffloadingSpec", "spec_module_path": "kv_sim.offload"}
    return "TimedOffloadingConnector", {**spec, "load_timeout_seconds": 12, **settings}


NOT_MEMORY = "states unequal fine failures losses counts"
NOT_LATER = "groups states unequal fine losses events counts"
NOT_PATIENT = f"{NOT_LATER} zeroing reset"
SHARED: Connector = ("SharedConnector", {"store": "{folder}"})
NOT_SHARED = f"{NOT_MEMORY} events"
NOT_P2P = "states fine keeps events counts"
FILES = (
    "TimedOffloadingConnector",
    {"spec_name": "WorldFileOffloadingSpec", "spec_module_path": "kv_sim.offload"},
)
FILES_SHARED = (FILES[0], {**FILES[1], "file_dir": "{folder}", "file_shared": True})
NEITHER = f"{NOT_LATER} failures"

# Connectors; what none of them need withstand; blocks of a chunk, from which time on it keeps one, and whether the
# one used longest ago is the first to go; settings of a MultiConnector.
KNOWN: dict[str, tuple[list[Connector], str, tuple[int, int, bool], dict[str, str]]] = {
    "memory": ([MEMORY], NOT_MEMORY, (1, 1, False), {}),
    "later": ([LATER], NOT_LATER, (1, 1, False), {}),
    "patient": ([PATIENT], NOT_PATIENT, (1, 1, False), {}),
    "memory+later": ([MEMORY, LATER], NEITHER, (1, 1, False), {}),
    "later+memory": ([LATER, MEMORY], NEITHER, (1, 1, False), {}),
    "later+later": ([LATER, LATER], NOT_LATER, (1, 1, False), {}),
    "later+patient": ([LATER, PATIENT], NOT_PATIENT, (1, 1, False), {}),
    "patient+memory": ([PATIENT, MEMORY], f"{NOT_PATIENT} failures", (1, 1, False), {}),
    "longest": ([LATER, MEMORY], NEITHER, (1, 1, False), {"load_policy": "longest"}),
    "later+flaky": ([LATER, FLAKY], f"{NOT_LATER} keeps", (1, 1, False), {"on_child_error": "quarantine"}),
    "flaky-busy+later": (
        [("FlakyConnector", {"breaks": "busy"}), LATER],
        f"{NOT_LATER} keeps",
        (1, 1, False),
        {"on_child_error": "quarantine"},
    ),
    "flaky-patient+memory": (
        [FLAKY_PATIENT, MEMORY],
        f"{NOT_PATIENT} failures keeps",
        (1, 1, False),
        {"on_child_error": "quarantine"},
    ),
    "later+holding": ([LATER, HOLDING], f"{NOT_LATER} keeps", (1, 1, False), {}),
    "layerwise": ([LAYERWISE], NOT_PATIENT, (1, 1, False), {}),
    "layerwise+later": ([LAYERWISE, LATER], NOT_PATIENT, (1, 1, False), {}),
    "layerwise+patient": ([LAYERWISE, PATIENT], NOT_PATIENT, (1, 1, False), {}),
    "offload": ([offload()], "", (1, 1, True), {}),
    "offload-chunks": ([offload(**CHUNKS)], "", (2, 1, False), {}),
    "offload-in-step": ([offload(**IN_STEP)], "", (1, 1, False), {}),
    "offload-held": (
        [offload(hold_blocks="always", blocks_per_chunk=3, eviction_policy="sieve")], "", (3, 1, False), {},
    ),
    "offload-in-step-fenced": (
        [offload(hold_blocks="never", sync_load_budget_bytes=1 << 20, self_describing_kv_events=True)],
        "zeroing",
        (1, 1, True),
        {},
    ),
    "offload-again": ([offload(hold_blocks="never", store_threshold=3)], "zeroing", (1, 3, True), {}),
    "offload-evicted": (
        [offload(hold_blocks="never", store_when="evicted", offload_prompt_only=False)],
        "zeroing groups states unequal keeps events",
        (1, 1, True),
        {},
    ),
    "offload-hasty": ([offload(load_timeout_seconds=1, store_timeout_seconds=1)], "", (1, 1, True), {}),
    "offload-file": ([FILES], "losses counts", (1, 1, True), {}),
    "offload-file-shared": ([FILES_SHARED], "losses events counts", (1, 1, True), {}),
    "offload+offload": ([offload(**CHUNKS), offload()], "events", (2, 1, False), {}),
    "offload+fenced": ([offload(), offload(hold_blocks="never")], "zeroing events", (1, 1, False), {}),
    "offload+file": ([offload(), FILES], "losses counts events", (1, 1, False), {}),
    "offload+file-shared": (
        [offload(), FILES_SHARED], "losses events counts strangers", (1, 1, False), {"load_policy": "longest"}
    ),
    "later+offload": ([LATER, offload()], NOT_LATER, (1, 1, False), {}),
    "in-step+later": ([offload(**IN_STEP), LATER], NOT_LATER, (1, 1, False), {}),
    "shared": ([SHARED], NOT_SHARED, (1, 1, True), {}),
    "p2p": ([P2P], NOT_P2P, (1, 1, False), {}),
    "p2p-hasty": ([P2P_HASTY], NOT_P2P, (1, 1, False), {}),
    "p2p-two-engines": ([P2P], NOT_P2P, (1, 1, False), {}),
    "p2p-lasting": ([P2P_LASTING], f"{NOT_P2P} tickets", (1, 1, False), {}),
    "p2p+offload": ([P2P, offload()], NOT_P2P, (1, 1, False), {}),
}  # fmt: skip


def connectors_of(subject: Subject) -> list[Connector]:
    if subject.kv_connector != "MultiConnector":
        return [(subject.kv_connector, subject.extra_config)]
    children = subject.extra_config["connectors"]
    return [(child["kv_connector"], child["kv_connector_extra_config"]) for child in children]


def test_all_are_known_in_this_order() -> None:
    assert [*SUBJECTS] == [*KNOWN]


@pytest.mark.parametrize("name", SUBJECTS)
def test_what_is_driven_and_spared(name: str) -> None:
    subject, (connectors, spared, keeps, settings) = SUBJECTS[name], KNOWN[name]
    assert connectors_of(subject) == connectors
    assert {*subject.possible_traits} - subject.traits == {*map(Trait, spared.split())}
    assert subject.traits <= {*subject.possible_traits}
    assert (subject.blocks_per_chunk, subject.keeps_from, subject.evicts_oldest) == keeps
    own = {key: value for key, value in subject.extra_config.items() if key != "connectors"}
    assert own == (settings if len(connectors) > 1 else connectors[0][1])
    assert subject.serves_peers == any(name == P2P[0] for name, _ in connectors)
    assert subject.shares_store == any(connector in (SHARED, FILES_SHARED) for connector in connectors)
    assert subject.engines == (2 if name.endswith("two-engines") or subject.shares_store else 1)


def test_children_of_children_get_the_room_of_the_world_and_the_role_of_their_parent() -> None:
    """Unless they have their own. What is no child is told of by who reads it."""
    world = WorldConfig(role="kv_consumer", host_slots=8)
    room = {"host_slots": 8, "cpu_bytes_to_use": world.host_bytes}
    odd: list[Any] = [7, {"kv_connector_extra_config": [1]}, {"kv_connector_extra_config": None}]
    inner = {"kv_role": "kv_producer", "kv_connector_extra_config": {"connectors": [{}, {"kv_role": "kv_both"}]}}
    children = [{"kv_connector": "A"}, {"kv_connector_extra_config": {"host_slots": 2}}, inner, *odd]
    subject = Subject("MultiConnector", extra_config={"connectors": children, "other": 1})
    told = subject.transfer_config(world)
    assert (told.kv_role, told.engine_id, told.kv_load_failure_policy) == ("kv_consumer", "world", "recompute")

    def child(role: str, extra: dict[str, Any], **more: Any) -> dict[str, Any]:
        return {"kv_role": role, "kv_connector_extra_config": {**room, **extra}, **more}

    grandchildren = [child("kv_producer", {}), child("kv_both", {})]
    assert told.kv_connector_extra_config == {
        **room,
        "other": 1,
        "connectors": [
            child("kv_consumer", {}, kv_connector="A"),
            child("kv_consumer", {"host_slots": 2}),
            child("kv_producer", {"connectors": grandchildren}),
            *odd,
        ],
    }
    alone = Subject("A", extra_config={"connectors": "none"}).transfer_config(world)
    assert alone.kv_connector_extra_config == {**room, "connectors": "none"}


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"traits": frozenset({"rank"})}, "traits: unknown trait 'rank'; known: {traits}; did you mean 'ranks'?"),
        ({"traits": {7}}, "traits: unknown trait 7; known: {traits}"),
        ({"traits": [Trait.RANKS]}, "traits: expected a frozenset of Trait, got [<Trait.RANKS: 'ranks'>]"),
        ({"traits": "ranks"}, "traits: expected a frozenset of Trait, got 'ranks'"),
        ({"extra_config": [1]}, "extra_config: expected a dict, got [1]"),
        ({"blocks_per_chunk": 0}, "blocks_per_chunk: expected a whole number of at least 1, got 0"),
        ({"keeps_from": True}, "keeps_from: expected a whole number of at least 1, got True"),
        ({"engines": "2"}, "engines: expected a whole number of at least 1, got '2'"),
        ({"engines": 3}, "engines: expected at most 2, got 3"),
    ],
)
def test_what_is_no_subject(values: dict[str, Any], message: str) -> None:
    """A claim that nobody knows would never be tried, and hold."""
    with pytest.raises(ConfigError) as raised:
        Subject("X", **values)
    assert str(raised.value) == f"Subject: {message.format(traits=', '.join(sorted(Trait)))}"


def test_several_count_if_all_of_them_do() -> None:
    assert Trait.COUNTS in several(offloading(), offloading(blocks_per_chunk=2)).traits
    assert Trait.COUNTS not in several(offloading(), SUBJECTS["later"]).traits
    assert Trait.EVENTS not in several(offloading(), offloading()).traits


def test_several_keep_what_the_slowest_of_them_keeps() -> None:
    both = several(offloading(blocks_per_chunk=2, store_threshold=3), offloading(blocks_per_chunk=3))
    assert (both.blocks_per_chunk, both.keeps_from) == (6, 3)
    assert offloading(store_threshold=0).keeps_from == 1
