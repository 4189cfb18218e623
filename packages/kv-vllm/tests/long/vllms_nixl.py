"""vLLM's own NixlConnector and NixlPushConnector, as they are, between two engines of the testbed: real NIXL.

Run by the session `vllm-long`, which installs NIXL. Both engines are in this process; NIXL moves their blocks as
it does between two servers of one machine.
"""

from dataclasses import replace

import pytest
from kv_vllm_short_histories import CONFIG, bearer, comes, found_in, held

from kv_sim.actions import Action, Kind
from kv_sim.cli.main import main as kv_sim
from kv_sim.config import GroupConfig
from kv_sim.fuzz import replay, run_seed
from kv_sim.history.coverage import PULLED
from kv_sim.subject import Subject, Trait
from kv_sim.violation import Invariant

pytestmark = [pytest.mark.vllm, pytest.mark.filterwarnings("ignore")]

MODULE = "vllm.distributed.kv_transfer.kv_connector.v1.nixl"
NIXL = Subject("NixlConnector", MODULE, traits=frozenset(), serves_peers=True, engines=2)
PUSH = replace(NIXL, kv_connector="NixlPushConnector")
MENDED = replace(NIXL, kv_connector="LearnsAll", module_path="kv_vllm_nixl")
"""The same without a mistake whose histories don't repeat: it depends on which of two threads is faster."""
LEFT_OPEN = frozenset({Invariant.CONSERVATION})
"""Its agents stay open until nobody knows them any more."""


def run(subject, seeds, without=LEFT_OPEN):
    """What fails first, and how much was pulled until then."""
    pulled = 0
    for seed in seeds:
        made = run_seed(subject, seed, engine="vllm", without=without)
        pulled += made.coverage.situations[PULLED]
        if made.failure is not None:
            return made.failure, pulled
    return None, pulled


@pytest.mark.parametrize(
    ("subject", "traits"),
    [
        (NIXL, ()),
        (NIXL, (Trait.RANKS, Trait.ZEROING, Trait.HOLDS)),
        (MENDED, (Trait.RANKS, Trait.ZEROING)),
    ],
    ids=["plain", "claims", "push"],
)
def test_what_it_moves_is_right(subject, traits):
    failure, pulled = run(replace(subject, traits=frozenset(traits)), range(10))
    assert failure is None, failure.violation
    assert pulled > 15


def test_two_pipeline_ranks_pull():
    """To vLLM they are two tensor ranks, and each asks for its like at the other engine."""
    assert found_in(NIXL, replace(CONFIG, pp_size=2), [*held("r1"), bearer("r1")], []) is None


@pytest.mark.parametrize("tokens", range(9, 14))
def test_a_pulled_prompt_whose_next_window_begins_with_a_block_lacks_the_one_before(tokens):
    """Its last token is computed anew, and reads the token before the window of the next one."""
    groups = (GroupConfig(), GroupConfig("sliding", 5))
    config = replace(CONFIG, block_size=2, groups=groups, num_blocks=48)
    found = found_in(NIXL, config, [*held("r1", tokens), bearer("r1", tokens)], [])
    begins = tokens - 5 + 1
    if begins % 2:
        assert found is None
    else:
        block = f"engine 1 request r1-00000001 token {begins - 2}: rank 0 block 0 holds poison"
        assert found.startswith(f"CONTENT  {block}"), found


ABORTED = [bearer("r2"), Action(Kind.ABORT, {"engine": 1, "request": "r2-00000001"})]
READS_NOTHING = [bearer("r2", reads=False)]


@pytest.mark.parametrize(
    ("subject", "have_met", "comes_to_nothing", "is_left"),
    [
        pytest.param(NIXL, False, ABORTED, True, id="pull, aborted, unmet"),
        pytest.param(NIXL, True, ABORTED, False, id="pull, aborted"),
        pytest.param(NIXL, True, READS_NOTHING, False, id="pull, reads nothing"),
        pytest.param(PUSH, True, ABORTED, True, id="push, aborted"),
        pytest.param(PUSH, True, READS_NOTHING, True, id="push, reads nothing"),
    ],
)
def test_whether_a_ticket_that_comes_to_nothing_lets_go(subject, have_met, comes_to_nothing, is_left):
    """Or is held until the lease of half a minute is over, which no world waits for."""
    found = found_in(
        subject, CONFIG, [*held("r1"), bearer("r1")] if have_met else [], [*held("r2"), *comes_to_nothing]
    )
    left = "LIVENESS  after 400 steps without new work these requests are left: <request r2 stopped 9/10, held, "
    assert (found is not None and found.startswith(left)) if is_left else found is None, found


THERE = [*held("r1"), bearer("r1")]
STEPS = [Action(Kind.STEP, {"engine": 1})] * 3
BACK = [comes("r2", conversation=1, engine=1), *STEPS, comes("r2-00000001", conversation=1)]
ASKS_FIRST = {"kv_lease_duration": 10**9}
"""A heartbeat is due after a sixth of it, so none precedes the first request for a push."""


@pytest.mark.parametrize(
    ("subject", "ways", "is_lost"),
    [
        pytest.param(PUSH, [THERE], False, id="push, one way"),
        pytest.param(PUSH, [THERE, BACK], True, id="push, both ways"),
        pytest.param(MENDED, [THERE, BACK], False, id="push, both ways, mended"),
        pytest.param(NIXL, [THERE, BACK], False, id="pull, both ways"),
    ],
)
def test_an_engine_that_asks_for_a_push_before_its_first_heartbeat_never_pushes_back(subject, ways, is_lost):
    """The request connects it without telling it where the other one's blocks are, and it connects only once."""
    subject, config = replace(subject, extra_config=ASKS_FIRST), replace(CONFIG, role="kv_both")
    found = found_in(subject, config, *ways, [])
    left = "<request r2-00000001 waiting for a load 9/9>, <request r2 stopped 9/10, held, waits for "
    assert (found is not None and left in found) if is_lost else found is None, found


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
    assert failure.violation.message.startswith("every side was shut down, but these are still open: ")


def test_the_command(capsys):
    typed = ["--connector", "NixlConnector", "--two-engines", "--engine", "vllm", "--histories", "3"]
    assert kv_sim(["fuzz", *typed, "--without", "CONSERVATION"]) == 0
    assert "NixlConnector: 3 histories, " in capsys.readouterr().out
