"""The subjects that come with the testbed, by the names that the command line knows."""

from typing import Final

from kv_sim.subject import Subject, Trait

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
            Trait.KEEPS,
            Trait.EVENTS,
        }
    ),
)
LATER: Final = Subject(
    "LaterConnector",
    "kv_sim.examples.later",
    traits=frozenset({Trait.RANKS, Trait.FAILURES, Trait.REPEATS, Trait.ZEROING, Trait.RESET, Trait.KEEPS}),
)
PATIENT: Final = Subject(
    "PatientConnector",
    "kv_sim.examples.patient",
    traits=frozenset({Trait.RANKS, Trait.FAILURES, Trait.REPEATS, Trait.KEEPS}),
)


def several(
    *children: Subject, kv_connector: str = "MultiConnector", module_path: str | None = "kv_multi"
) -> Subject:
    """A MultiConnector over these. It claims what all of them claim; only one of several would tell all events."""
    connectors = [
        {
            "kv_connector": child.kv_connector,
            "kv_connector_module_path": child.module_path,
            "kv_connector_extra_config": dict(child.extra_config),
        }
        for child in children
    ]
    traits = frozenset.intersection(*(child.traits for child in children)) - {Trait.EVENTS}
    return Subject(kv_connector, module_path, {"connectors": connectors}, traits)


SUBJECTS: Final[dict[str, Subject]] = {
    "memory": MEMORY,
    "later": LATER,
    "patient": PATIENT,
    "memory+later": several(MEMORY, LATER),
    "later+memory": several(LATER, MEMORY),
    "later+later": several(LATER, LATER),
    "later+patient": several(LATER, PATIENT),
    "patient+memory": several(PATIENT, MEMORY),
}
