"""What campaigns found, made up."""

from kv_sim.campaign.found import Campaign
from kv_sim.config import WorldConfig
from kv_sim.examples.catalogue import MEMORY
from kv_sim.fuzz import Failure
from kv_sim.subject import Subject
from kv_sim.violation import Invariant, Violation


def reached(pairs: dict[tuple[str, str], int], situations: dict[str, int]) -> Campaign:
    """A campaign that reached just these, so many times."""
    campaign = Campaign()
    campaign.coverage.pairs.update(pairs)
    campaign.coverage.situations.update(situations)
    return campaign


def failure(seed: int | None, subject: Subject = MEMORY) -> Failure:
    """One of a subject, by a seed."""
    return Failure(subject, WorldConfig(), [], Violation(Invariant.WORK, "x"), seed)
