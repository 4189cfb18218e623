"""The subjects that come with the testbed, by the names that the command line knows."""

from typing import Final

from kv_sim.subject import Subject, Trait

_LATER = frozenset({Trait.RANKS, Trait.FAILURES, Trait.REPEATS, Trait.ZEROING, Trait.RESET})

MEMORY: Final = Subject(
    "MemoryConnector",
    "kv_sim.examples.memory",
    traits=frozenset({Trait.GROUPS, Trait.RANKS, Trait.REPEATS, Trait.ZEROING, Trait.RESET}),
)
LATER: Final = Subject("LaterConnector", "kv_sim.examples.later", traits=_LATER)
PATIENT: Final = Subject(
    "PatientConnector",
    "kv_sim.examples.patient",
    traits=frozenset({Trait.RANKS, Trait.FAILURES, Trait.REPEATS}),
)

SUBJECTS: Final[dict[str, Subject]] = {"memory": MEMORY, "later": LATER, "patient": PATIENT}
