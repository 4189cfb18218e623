"""vLLM's own MooncakeConnector between two engines of the testbed: Mooncake's real transfer engine, over TCP.

Run by the session ``vllm-long``, which installs it. Both engines are in this process. The router names each
transfer, and makes up the ticket of what is held.
"""

import gc
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
from kv_sim.world import World

pytestmark = [pytest.mark.vllm, pytest.mark.filterwarnings("ignore")]

MODULE = "vllm.distributed.kv_transfer.kv_connector.v1.mooncake.mooncake_connector"
MOONCAKE = Subject(
    "Ends",
    "kv_vllm_mooncake",
    {"mooncake_protocol": "tcp"},
    traits=frozenset(),
    serves_peers=True,
    engines=2,
)


@pytest.fixture(autouse=True)
def _collected():
    """What it leaves to the collector, such as loops that nobody closes, is complained of here, and known here."""
    yield
    for _ in range(5):
        gc.collect()


def run(subject, seeds):
    """What fails first, and how much was pulled until then."""
    pulled = 0
    for seed in seeds:
        made = run_seed(subject, seed, engine="vllm")
        pulled += made.coverage.situations[PULLED]
        if made.failure is not None:
            return made.failure, pulled
    return None, pulled


@pytest.mark.parametrize(
    "traits",
    [(), (Trait.RANKS, Trait.ZEROING, Trait.HOLDS), (Trait.GROUPS, Trait.STATES)],
    ids=["plain", "claims", "states"],
)
def test_what_it_moves_is_right(traits):
    failure, pulled = run(replace(MOONCAKE, traits=frozenset(traits)), range(10))
    assert failure is None, failure.violation
    assert pulled > 15


def test_two_pipeline_ranks_pull():
    """To vLLM they are two tensor ranks, and each asks for its like at the other engine."""
    assert found_in(MOONCAKE, replace(CONFIG, pp_size=2), [*held("r1"), bearer("r1")]) is None


@pytest.mark.parametrize("tokens", range(9, 14))
def test_a_pulled_prompt_whose_next_window_begins_with_a_block_lacks_the_one_before(tokens):
    """Its last token is computed anew, and reads the token before the window of the next one."""
    groups = (GroupConfig(), GroupConfig("sliding", 5))
    config = replace(CONFIG, block_size=2, groups=groups, num_blocks=48)
    found = found_in(MOONCAKE, config, [*held("r1", tokens), bearer("r1", tokens)])
    begins = tokens - 5 + 1
    if begins % 2:
        assert found is None
    else:
        block = f"engine 1 request r1-00000001 token {begins - 2}: rank 0 block 0 holds poison"
        assert found.startswith(f"CONTENT  {block}"), found


@pytest.mark.parametrize("have_met", [False, True], ids=["unmet", "met"])
@pytest.mark.parametrize(
    "comes_to_nothing",
    [
        pytest.param([bearer("r2"), Action(Kind.ABORT, {"engine": 1, "request": "r2-00000001"})], id="aborted"),
        pytest.param([bearer("r2", reads=False)], id="reads nothing"),
    ],
)
def test_a_ticket_that_comes_to_nothing_lets_go(have_met, comes_to_nothing):
    first = [*held("r1"), bearer("r1")] if have_met else []
    assert found_in(MOONCAKE, CONFIG, first, [*held("r2"), *comes_to_nothing]) is None


def has_come(world, **more):
    """Who goes on from the first one comes to the second engine, whatever became of that, or will."""
    params = {"do_remote_prefill": True, "do_remote_decode": False, "transfer_id": "transfer-1"}
    world.engines[1].params_for = lambda request: {**params, **world.engine.address(), **more}
    return world.apply(comes("late", engine=1)) and world.apply(Action(Kind.STEP, {"engine": 1}))


def nobody_is_there(world):
    """The address that it was given is wrong."""
    return has_come(world, remote_bootstrap_addr="http://localhost:1")


def first_token_stops(world):
    """The one token of the first one will be one to stop at. That nothing is held then is known."""
    world.referee.switched_off.add(Invariant.HITS)
    request, twin = world.engine.vllm.requests["r1"], world.engine.ledger.twins["r1"]
    request.sampling_params.stop_token_ids = [twin.future[request.num_prompt_tokens]]
    return True


ABORT = Action(Kind.ABORT, {"request": "r1"})
LATE = {
    "aborted": [comes("r1"), ABORT, has_come],
    "aborted meanwhile": [comes("r1"), Action(Kind.STEP), has_come, ABORT],
    "stopped": [comes("r1"), first_token_stops, has_come],
}
SLOW = replace(CONFIG, max_step_tokens=4, failure_policy="fail")
"""A prompt takes several steps, and a load that fails ends its request."""


def test_who_comes_before_the_prompt_is_computed_waits_for_it():
    assert found_in(MOONCAKE, CONFIG, [has_come, *held("r1")]) is None


@pytest.mark.parametrize("seconds", [480, 1])
@pytest.mark.parametrize("actions", LATE.values(), ids=LATE)
def test_who_comes_for_what_is_never_held_waits_until_time_is_up(actions, seconds, monkeypatch):
    """Which nobody told it: a world waits four seconds."""
    monkeypatch.setenv("VLLM_MOONCAKE_ABORT_REQUEST_TIMEOUT", str(seconds))
    found = found_in(MOONCAKE, SLOW, actions)
    waits = (
        "LIVENESS  after 400 steps without new work these requests are left: <request late waiting for a load 9/9>"
    )
    assert found is None if seconds == 1 else found.startswith(waits), found


def test_and_if_it_is_aborted_its_blocks_stay():
    found = found_in(MOONCAKE, SLOW, [*LATE["aborted"], Action(Kind.ABORT, {"engine": 1, "request": "late"})])
    assert found.startswith(
        "LIVENESS  after 400 steps without new work these requests are left: <request late "
    ), found


def test_who_finds_nobody_is_told():
    assert found_in(MOONCAKE, SLOW, [nobody_is_there]) is None


@pytest.mark.parametrize(("side", "wish"), [(0, "do_remote_prefill"), (1, "do_remote_decode")])
def test_what_is_not_for_its_role_ends_an_engine(side, wish):
    """The first produces, the second consumes."""

    def comes_with(world):
        world.engines[side].params_for = lambda request: {wish: True, "transfer_id": "a"}
        return world.apply(comes("r1", engine=side)) and world.apply(Action(Kind.STEP, {"engine": side}))

    found = found_in(MOONCAKE, CONFIG, [comes_with])
    assert found.startswith("NO-CRASH  ")
    assert "AssertionError" in found


@pytest.mark.parametrize(
    ("name", "traits", "invariants"),
    [
        ("SwapsBlocks", (), {Invariant.CONTENT}),
        ("TakesNothing", (Trait.HOLDS,), {Invariant.HITS, Invariant.LIVENESS}),
    ],
)
def test_a_mistake_in_it_is_found(name, traits, invariants):
    wrong = replace(MOONCAKE, kv_connector=name, traits=frozenset(traits))
    failure, _ = run(wrong, range(20))
    assert failure.violation.invariant in invariants
    again, violation = replay(wrong, failure.config, failure.history)
    assert again is not None
    assert violation.invariant in invariants


def test_the_end_of_a_worker_waits_for_its_own_socket():
    """It ends its sockets' context, which waits until all are closed; nobody closes that on which it listens."""
    world = World(CONFIG, MOONCAKE)
    sockets = list(world.engine.connectors[0].connector_worker.async_zmq_ctx._sockets)
    assert [socket.closed for socket in sockets] == [False]
    world.break_off(None)
    assert [socket.closed for socket in sockets] == [True], "the testbed's own end has closed it"


def test_what_it_leaves_open_is_told():
    failure, _ = run(replace(MOONCAKE, kv_connector="MooncakeConnector", module_path=MODULE), range(3))
    assert failure.violation.invariant is Invariant.CONSERVATION
    assert failure.violation.message.startswith("every side was shut down, but these are still open: ")


def test_the_command(capsys):
    typed = ["--connector", "MooncakeConnector", "--extra", '{"mooncake_protocol": "tcp"}', "--two-engines"]
    assert kv_sim(["fuzz", *typed, "--engine", "vllm", "--histories", "3", "--without", "CONSERVATION"]) == 0
    assert "MooncakeConnector: 3 histories, " in capsys.readouterr().out
