"""vLLM's own NixlConnector, as it is, between two engines of the testbed: real NIXL, vLLM's schedulers.

Run by the session `vllm-long`, which installs NIXL. Both engines are in this process; NIXL moves their blocks as
it does between two servers of one machine.
"""

from dataclasses import replace

import pytest

from kv_sim.command.cli import main as kv_sim
from kv_sim.fuzz import replay, run_seed
from kv_sim.subject import Subject, Trait
from kv_sim.violation import Invariant

pytestmark = [pytest.mark.vllm, pytest.mark.filterwarnings("ignore")]

MODULE = "vllm.distributed.kv_transfer.kv_connector.v1.nixl"
NIXL = Subject("NixlConnector", MODULE, traits=frozenset(), serves_peers=True, engines=2)
LEFT_OPEN = frozenset({Invariant.CONSERVATION})
"""Its agents stay open until nobody knows them any more."""


def run(subject, seeds, silent=LEFT_OPEN):
    """What fails first, and how much was pulled until then."""
    pulled = 0
    for seed in seeds:
        made = run_seed(subject, seed, engine="vllm", silent=silent)
        pulled += made.coverage.situations["match: asynchronous load"]
        if made.failure is not None:
            return made.failure, pulled
    return None, pulled


@pytest.mark.parametrize("traits", [(), (Trait.RANKS, Trait.ZEROING)], ids=["plain", "claims"])
def test_what_it_pulls_is_right(traits):
    failure, pulled = run(replace(NIXL, traits=frozenset(traits)), range(10))
    assert failure is None, failure.violation
    assert pulled > 15


@pytest.mark.parametrize(
    ("name", "traits", "invariants"),
    [
        ("SwapsBlocks", (), {Invariant.CONTENT}),
        ("TakesNothing", (Trait.HOLDS,), {Invariant.HITS, Invariant.LIVENESS}),
    ],
)
def test_a_mistake_in_it_is_found(name, traits, invariants):
    wrong = replace(NIXL, kv_connector=name, module_path="kv_vllm_nixl", traits=frozenset(traits))
    failure, _ = run(wrong, range(20))
    assert failure.violation.invariant in invariants
    again, violation = replay(wrong, failure.config, failure.history, LEFT_OPEN)
    assert again is not None
    assert violation.invariant in invariants


def test_what_it_leaves_open_is_told():
    failure, _ = run(NIXL, range(5), frozenset())
    assert failure.violation.invariant is Invariant.CONSERVATION
    assert failure.violation.message.startswith("every side was shut down, and these are still open: ")


def test_the_command(capsys):
    typed = ["--connector", "NixlConnector", "--two-engines", "--engine", "vllm", "--histories", "3"]
    assert kv_sim(["fuzz", *typed, "--without", "CONSERVATION"]) == 0
    assert "NixlConnector: 3 histories, " in capsys.readouterr().out
