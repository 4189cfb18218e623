"""vLLM's MoRIIOConnector between two engines of the testbed, without a GPU and without AMD's mori.

Run by the session ``vllm-long``. ``kv_vllm_moriio`` has what it needs of both, and ``kv_vllm_moriio_mended`` a
variant without the mistakes that are shown here. ``docs/others/moriio.md`` tells of them.
"""

from dataclasses import replace

import pytest
from kv_vllm_moriio import WORLD, AtOnce, OnCpu
from kv_vllm_moriio_io import Session, Status, StatusCode, Wire
from kv_vllm_moriio_machine import PROCESSES
from kv_vllm_moriio_mended import Mended
from kv_vllm_short_histories import CONFIG, bearer, comes, held, rests, what_is_wrong

from kv_sim.actions import Action, Kind
from kv_sim.cli.main import main as kv_sim
from kv_sim.config import GroupConfig
from kv_sim.fuzz import run_seed
from kv_sim.history.coverage import PULLED
from kv_sim.subject import Subject, Trait
from kv_sim.violation import Invariant
from kv_sim.world import World
from kv_vllm.installed import vllm_version

pytestmark = [pytest.mark.vllm, pytest.mark.filterwarnings("ignore")]

IS_NEWER = vllm_version() >= (0, 33)
READS = Subject(OnCpu.__name__, OnCpu.__module__, traits=frozenset(), serves_peers=True, engines=2)
PUSHES = replace(READS, extra_config={"read_mode": False})
AT_ONCE = replace(PUSHES, kv_connector=AtOnce.__name__)
STEP = Action(Kind.STEP)
THERE = Action(Kind.STEP, {"engine": 1})
SLOW = replace(CONFIG, max_step_tokens=4)


def mended(subject):
    return replace(subject, kv_connector=Mended.__name__, module_path=Mended.__module__)


def found_in(subject, actions, config=CONFIG, *, without=(), **settings):
    told = replace(subject, extra_config={**subject.extra_config, **settings})
    return what_is_wrong(told, config, actions, without=without)


PREEMPT = Action(Kind.RESET, {"running": True, "connector": False})
ABORT = Action(Kind.ABORT, {"request": "r1"})
ABORT_THERE = Action(Kind.ABORT, {"engine": 1, "request": "r1-00000001"})
AHEAD = replace(CONFIG, run_ahead=1, async_scheduling=True)


def steps(world):
    """As many as the first engine needs."""
    return all(world.apply(STEP) or True for _ in range(6))


def has_come(world):
    """Who goes on from the first one, ``r1``, comes to the second engine, whatever became of that, or will."""
    ticket = {"do_remote_prefill": True, "do_remote_decode": False, "transfer_id": "transfer-1"}
    world.engines[1].params_for = lambda request: {**ticket}
    return world.apply(comes("late", engine=1)) and world.apply(THERE)


BOTH = pytest.mark.parametrize("subject", [READS, PUSHES], ids=["reads", "pushes"])


@BOTH
@pytest.mark.parametrize("apart", [False, True])
def test_a_prompt_goes_from_one_engine_to_the_other(subject, apart):
    assert found_in(subject, [*held("r1"), bearer("r1")], apart=apart) is None


# -- where the second engine reads -------------------------------------------------------------


def test_who_has_no_ticket_computes_on_what_it_finds():
    """Of every prompt it says that all but the last token is loaded."""
    found = found_in(READS, [comes("r1", engine=1)])
    assert (found is None) if IS_NEWER else found.startswith("CONTENT  engine 1 request r1 token 0: "), found
    assert found_in(mended(READS), [comes("r1", engine=1)]) is None


def test_so_does_who_is_preempted():
    """It has used its ticket by then."""
    again = Action(Kind.RESET, {"engine": 1, "running": True, "connector": False})
    history = [*held("r1"), comes("r1-00000001", 9, 3, engine=1), THERE, again]
    found = found_in(READS, history)
    assert (found is None) if IS_NEWER else found.startswith("CONTENT  engine 1 request r1-00000001 token 0: ")
    assert found_in(mended(READS), history) is None


@BOTH
def test_blocks_that_others_share_are_written(subject):
    """What the second engine has of the prompt in its own cache is moved again, and into these very blocks."""
    history = [*held("r1", 11), bearer("r1", 11), rests, *held("r2", 11), bearer("r2", 11)]
    config = replace(CONFIG, prefix_caching=True)
    found = found_in(subject, history, config)
    assert found.startswith("OWNERSHIP  engine 1 rank 0 block 1 (of request r2-00000001): transfer "), found
    assert found_in(mended(subject), history, config) is None


@pytest.mark.parametrize("tokens", range(9, 14))
def test_null_blocks_are_moved_and_one_that_is_read_is_missing(tokens):
    """As with NixlConnector: if a window that ends with the prompt's last token begins with the end of a block."""
    groups = (GroupConfig(), GroupConfig("sliding", 5))
    config = replace(CONFIG, block_size=2, groups=groups, num_blocks=48)
    history = [*held("r1", tokens), bearer("r1", tokens)]
    assert found_in(READS, history, config) == "OWNERSHIP  engine 0 rank 0: transfer 1 touches the null block 0"
    found = found_in(READS, history, config, without=[Invariant.OWNERSHIP])
    if (tokens - 5 + 1) % 2:
        assert found is None
    else:
        assert found.startswith(f"CONTENT  engine 1 request r1-00000001 token {tokens - 6}: "), found
    assert found_in(mended(READS), history, config) is None


def test_who_waits_for_too_long_computes_all_the_same(monkeypatch):
    """It is logged, and nobody else is told. A newer one fails the step, which ends the engine."""
    monkeypatch.setattr(Wire, "let_some_end", lambda wire: False)
    found = found_in(READS, [*held("r1"), bearer("r1")], without=[Invariant.OWNERSHIP])
    expected = ("NO-CRASH  ", "TransferError") if IS_NEWER else ("CONTENT  ", "holds poison")
    assert found.startswith(expected[0]), found
    assert expected[1] in found


def test_what_is_held_for_a_minute_is_given_away_and_read():
    """The first engine frees it, which no reader is told, nor does he ask."""

    def a_minute_goes_by(world):
        WORLD.clock.now += 61
        return True

    history = [*held("r1"), a_minute_goes_by, *held("r2"), comes("r3", conversation=1), steps, bearer("r1")]
    found = found_in(READS, history)
    assert found.startswith("CONTENT  engine 1 request r1-"), found


# -- where the first engine pushes -------------------------------------------------------------


def test_who_takes_nothing_ends_the_thread_that_listens():
    """Of no blocks it isn't told: with that error its thread ends, and nothing is ever pushed or freed again."""
    died = []

    def looks(world):
        died.extend(str(thread.died_of) for one in PROCESSES for thread in one.threads if thread.died_of)
        return True

    history = [*held("r1"), bearer("r1", reads=False), THERE, *held("r2"), looks]
    found = found_in(PUSHES, history)
    if IS_NEWER:
        assert found is None
        return
    assert found.startswith("LIVENESS  "), found
    assert died == ["Error processing message: block_notify_list cannot be empty in remote allocate message"]
    assert found_in(mended(PUSHES), history) is None


def test_who_is_aborted_while_it_is_pushed_keeps_its_blocks():
    """It is forgotten, so when the push has ended nobody knows whose that was."""
    history = [*held("r1"), bearer("r1"), THERE, ABORT_THERE]
    found = found_in(PUSHES, history)
    left = "<request r1-00000001 aborted 9/9, loading, waits for finished_recving>"
    assert found == f"LIVENESS  after 400 steps without new work these requests are left: {left}"
    assert found_in(mended(PUSHES), history) is None


@BOTH
def test_who_is_aborted_before_it_is_scheduled_lets_go(subject):
    assert found_in(subject, [*held("r1"), bearer("r1"), ABORT_THERE]) is None


def test_who_is_preempted_after_its_last_chunk_pushes_from_blocks_that_it_had():
    """That it is to be pushed is scheduled once a layer, with the blocks of then."""
    history = [comes("r1"), STEP, PREEMPT, *[STEP] * 3, bearer("r1")]
    found = found_in(PUSHES, history, AHEAD)
    assert found.startswith("CONTENT  engine 1 request r1-00000001 token 0: rank 0 block 1 holds "), found
    assert found_in(mended(PUSHES), history, AHEAD) is None


@BOTH
def test_who_is_aborted_is_remembered(subject):
    """The first engine forgets only who was held and is let go, and it tells its workers of all in each step."""
    found = found_in(subject, [comes("r1"), STEP, ABORT], SLOW)
    assert found.startswith("CONSERVATION  engine 0 request r1 has ended, everything is at rest, "), found
    assert found_in(mended(subject), [comes("r1"), STEP, ABORT], SLOW) is None


def first_token_stops(world):
    """The one token of the first one will be one to stop at. That nothing is held then is known."""
    world.referee.switched_off.add(Invariant.HITS)
    request, twin = world.engine.vllm.requests["r1"], world.engine.ledger.twins["r1"]
    request.sampling_params.stop_token_ids = [twin.future[request.num_prompt_tokens]]
    return True


def test_who_comes_before_the_prompt_is_computed_waits_for_it():
    assert found_in(AT_ONCE, [has_come, *held("r1")]) is None


def test_what_is_pushed_of_one_that_stopped_is_another_ones():
    """Its blocks were freed, and what was to be pushed of them is pushed when somebody comes for it."""
    others = [comes(f"r{number}", 9, 1, number) for number in range(2, 9)]
    history = [comes("r1"), first_token_stops, steps, *others, steps, steps, has_come]
    found = found_in(AT_ONCE, history, replace(CONFIG, num_blocks=24), without=[Invariant.PROTOCOL])
    assert found.startswith("CONTENT  engine 1 request late token 0: rank 0 block 1 holds "), found


def test_who_comes_for_what_is_never_computed_waits_for_good():
    """It has no time after which it gives up, and isn't told."""
    found = found_in(AT_ONCE, [comes("r1"), ABORT, has_come], SLOW)
    assert found.startswith("LIVENESS  "), found
    assert "<request late waiting for a load 9/9>" in found


def fails(session, *said):
    """What a transfer is that comes to nothing."""
    return Status(StatusCode.ERR_RDMA_OP)


def test_who_is_pushed_by_what_fails_waits_for_good(monkeypatch):
    """The first engine frees its blocks, and tells nobody."""
    monkeypatch.setattr(Session, "batch_write", fails)
    found = found_in(PUSHES, [*held("r1"), bearer("r1")], replace(CONFIG, failure_policy="fail"))
    assert "<request r1-00000001 waiting for a load 9/9>" in found, found


def test_a_read_that_fails_is_told(monkeypatch):
    monkeypatch.setattr(Session, "batch_read", fails)
    config = replace(CONFIG, failure_policy="fail")
    assert found_in(mended(READS), [*held("r1"), bearer("r1")], config) is None


# -- what it is told and leaves ----------------------------------------------------------------


def test_an_engine_that_does_both_does_neither():
    """To a scheduler's side it is no producer, and to a worker's it is one."""
    both = replace(CONFIG, role="kv_both")
    assert found_in(PUSHES, [*held("r1"), bearer("r1")], both).startswith("LIVENESS  ")


def test_its_threads_go_on():
    """``shutdown`` doesn't end them."""
    world = World(CONFIG, replace(READS, kv_connector="Unended"))
    worker = world.engine.connectors[0]
    world.break_off(None)
    threads = worker.process.threads
    assert [thread.is_alive() for thread in threads] == [True, True]
    worker.process.close()
    assert [thread.is_alive() for thread in threads] == [False, False]


# -- everything else holds ---------------------------------------------------------------------


@pytest.mark.parametrize(
    ("subject", "traits", "settings"),
    [
        (READS, "ranks,zeroing,holds", {}),
        (READS, "ranks,zeroing,holds,groups", {"lags": 2}),
        (READS, "ranks,zeroing,holds,failures,repeats", {"apart": True}),
        (READS, "ranks,zeroing,holds,losses", {}),
        (PUSHES, "ranks,zeroing,holds", {}),
        (PUSHES, "ranks,zeroing,holds", {"lags": 2}),
    ],
    ids=["reads", "reads late", "reads that fail", "reads that get lost", "pushes", "pushes late"],
)
def test_without_these_it_holds(subject, traits, settings):
    told = {**subject.extra_config, **settings}
    held_to = replace(mended(subject), traits=frozenset(map(Trait, traits.split(","))), extra_config=told)
    pulled = 0
    for seed in range(12):
        made = run_seed(held_to, seed, engine="vllm")
        assert made.failure is None, made.failure.violation
        pulled += made.coverage.situations[PULLED]
    assert pulled > 15


def test_a_history_comes_again():
    subject = replace(mended(PUSHES), traits=frozenset({Trait.RANKS, Trait.HOLDS}))
    assert run_seed(subject, 3, engine="vllm").digest == run_seed(subject, 3, engine="vllm").digest


def test_the_command(capsys):
    typed = [
        "--connector",
        "kv_vllm_moriio_mended:Mended",
        "--two-engines",
        "--engine",
        "vllm",
        "--histories",
        "3",
    ]
    assert kv_sim(["fuzz", *typed, "--traits", "ranks,zeroing,holds"]) == 0
    assert "Mended: 3 histories, " in capsys.readouterr().out
