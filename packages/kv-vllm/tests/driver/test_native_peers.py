"""With a vLLM: a connector of vLLM's own base class that serves other engines pulls from itself in the testbed."""

from dataclasses import replace

import pytest

pytest.importorskip("kv_sim")

from kv_sim.cli.main import main as kv_sim
from kv_sim.config import WorldConfig
from kv_sim.engine.request_spec import RequestSpec
from kv_sim.fuzz import replay, run_seed
from kv_sim.subject import Subject, Trait
from kv_sim.violation import Invariant
from kv_sim.world import World

pytestmark = [pytest.mark.vllm, pytest.mark.filterwarnings("ignore"), pytest.mark.usefixtures("a_vllm")]


def conform(name, capsys, tmp_path, *more):
    typed = ["conform", f"kv_vllm_peers:{name}", "--engine", "vllm", "--serves-peers", "--save", str(tmp_path)]
    code = kv_sim([*typed, *more])
    return code, capsys.readouterr().out


def test_it_holds_what_it_claims(capsys, tmp_path):
    code, out = conform("Peers", capsys, tmp_path, "--traits", "ranks,holds", "--histories", "12")
    assert code == 0, out
    loads = next(line for line in out.splitlines() if line.startswith("match: asynchronous load"))
    assert int(loads.split()[-1]) > 80, "something was pulled"


def test_a_ticket_that_comes_to_nothing_must_let_go():
    keeps = Subject("KeepsHolding", "kv_vllm_peers", traits=frozenset({Trait.HOLDS}), serves_peers=True)
    failures = (run_seed(keeps, seed, engine="vllm").failure for seed in range(180, 400))
    found = next(failure for failure in failures if failure is not None)
    assert found.violation.invariant is Invariant.LIVENESS
    assert "held, waits for finished_sending" in found.violation.message
    for other in (replace(keeps, kv_connector="Peers"), replace(keeps, traits=frozenset())):
        _, violation = replay(other, found.config, found.history)
        assert violation is None, "it lets go, or somebody else comes for it at the end"


def test_what_is_wanted_must_be_held():
    holds_nothing = Subject("HoldsNothing", "kv_vllm_peers", traits=frozenset({Trait.HOLDS}), serves_peers=True)
    found = run_seed(holds_nothing, 0, engine="vllm").failure
    assert found is not None and found.violation.invariant is Invariant.HITS
    assert "neither held its blocks nor left a ticket" in found.violation.message
    assert run_seed(replace(holds_nothing, traits=frozenset()), 0, engine="vllm").failure is None


def test_of_every_other_hold_vllms_cache_keeps_the_first_half():
    subject = Subject("Peers", "kv_vllm_peers", traits=frozenset(), serves_peers=True)
    world = World(WorldConfig(engine="vllm", num_blocks=60, max_step_tokens=64), subject)
    for number in range(2):
        world.engine.add(RequestSpec(f"r{number}", number, 17, 0, 1, 1))
    found = []
    while world.router.learned < 2:
        world.engine.finish_step() if world.engine.steps else world.engine.schedule(lambda name, drafts: 0)
    for number in range(2):
        request = world.engine.vllm.requests[f"r{number}"]
        blocks = world.engine.vllm.kv_cache_manager.get_block_ids(request.request_id)[0]
        pool = world.engine.vllm.kv_cache_manager.block_pool.blocks
        found.append([pool[block].block_hash is not None for block in blocks])
    assert found == [[True] * 4 + [False], [True] * 2 + [False] * 3]


@pytest.mark.parametrize(("tp_size", "pp_size"), [(1, 1), (2, 1), (1, 2), (2, 2)])
def test_a_worker_is_known_by_where_it_stands_to_vllm(tp_size, pp_size):
    """NIXL's asks for the ranks that a ticket counts: by another place it finds nobody."""
    world = World(
        WorldConfig(engine="vllm", tp_size=tp_size, pp_size=pp_size),
        Subject("TellsWhereItStands", "kv_vllm_peers", traits=frozenset(), serves_peers=True),
    )
    connector = world.engine.connectors[-1]
    sizes = connector.parallel.pipeline_parallel_size, connector.parallel.tensor_parallel_size
    places = [(pp, tp) for pp in range(sizes[0]) for tp in range(sizes[1])]
    assert {place: told.place for place, told in connector.heard.items()} == {place: place for place in places}
    assert len(places) == tp_size * pp_size
