"""vLLM's own NixlConnector and NixlPushConnector, as they are, between two engines of the testbed: real NIXL.

Run by the session `vllm-long`, which installs NIXL. Both engines are in this process; NIXL moves their blocks as
it does between two servers of one machine.
"""

from dataclasses import replace

import pytest

from kv_sim.actions import Action, Kind
from kv_sim.command.cli import main as kv_sim
from kv_sim.config import WorldConfig
from kv_sim.engine.request import RequestSpec
from kv_sim.fuzz import replay, run_seed
from kv_sim.subject import Subject, Trait
from kv_sim.violation import Invariant

pytestmark = [pytest.mark.vllm, pytest.mark.filterwarnings("ignore")]

MODULE = "vllm.distributed.kv_transfer.kv_connector.v1.nixl"
NIXL = Subject("NixlConnector", MODULE, traits=frozenset(), serves_peers=True, engines=2)
PUSH = replace(NIXL, kv_connector="NixlPushConnector")
LEFT_OPEN = frozenset({Invariant.CONSERVATION})
"""Its agents stay open until nobody knows them any more."""
HOLDS = frozenset({Trait.RANKS, Trait.HOLDS})
PROMPT = RequestSpec("r1", 0, 9, 0, 1, 1)
HELD = [Action(Kind.ADD, {"spec": PROMPT.to_json()}), *[Action(Kind.STEP)] * 3]
ABORTED = Action(Kind.ABORT, {"engine": 1, "request": "r1-00000001"})


def run(subject, seeds, silent=LEFT_OPEN):
    """What fails first, and how much was pulled until then."""
    pulled = 0
    for seed in seeds:
        made = run_seed(subject, seed, engine="vllm", silent=silent)
        pulled += made.coverage.situations["match: asynchronous load"]
        if made.failure is not None:
            return made.failure, pulled
    return None, pulled


@pytest.mark.parametrize(
    ("subject", "traits"),
    [
        (NIXL, ()),
        (NIXL, (Trait.RANKS, Trait.ZEROING, Trait.HOLDS)),
        (PUSH, (Trait.RANKS, Trait.ZEROING)),
    ],
    ids=["plain", "claims", "push"],
)
def test_what_it_moves_is_right(subject, traits):
    failure, pulled = run(replace(subject, traits=frozenset(traits)), range(10))
    assert failure is None, failure.violation
    assert pulled > 15


def test_two_pipeline_ranks_pull():
    """To vLLM they are two tensor ranks, and each asks for its like at the other engine."""
    config = WorldConfig(engine="vllm", engines=2, pp_size=2, role="kv_producer", prefix_caching=False)
    _, violation = replay(replace(NIXL, traits=HOLDS), config, [*HELD, bearer()], LEFT_OPEN)
    assert violation is None


def bearer(*, reads: bool = True):
    """Who comes to the other engine with the ticket of the prompt."""
    spec = replace(PROMPT, request_id="r1-00000001", skip_reading_prefix_cache=not reads)
    return Action(Kind.ADD, {"engine": 1, "spec": spec.to_json()})


@pytest.mark.parametrize(
    "comes_to_nothing",
    [[bearer(), ABORTED], [bearer(reads=False)]],
    ids=["aborted before it is scheduled", "takes nothing that is cached"],
)
@pytest.mark.parametrize(
    ("subject", "is_left"),
    [(NIXL, False), (PUSH, True), (replace(PUSH, extra_config={"kv_lease_duration": 1}), False)],
    ids=["pull", "push", "push, for a second"],
)
def test_a_ticket_that_comes_to_nothing(subject, is_left, comes_to_nothing):
    """Who would have been pushed to tells nobody: the blocks stay until their lease is over."""
    config = WorldConfig(engine="vllm", engines=2, role="kv_producer", prefix_caching=False)
    history = [*HELD, *comes_to_nothing]
    _, violation = replay(replace(subject, traits=HOLDS), config, history, LEFT_OPEN)
    held = "LIVENESS  after 400 quiet steps there are still requests: <request r1 stopped 9/10, held, waits for "
    assert str(violation).startswith(held) if is_left else violation is None, violation


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
