"""What a scheduler of vLLM's is given for each event of a trace; that the schedulers agree is tried elsewhere."""

from types import SimpleNamespace
from unittest.mock import MagicMock

import pytest

from kv_sim.config import WorldConfig
from kv_vllm.differential.comparison import Script
from kv_vllm.differential.trace import (
    Abort,
    Add,
    NextTurn,
    Paused,
    PoolCall,
    Process,
    Reset,
    Resumed,
    Sampled,
    Schedule,
    Trace,
)

pytestmark = [pytest.mark.vllm, pytest.mark.filterwarnings("ignore")]


@pytest.fixture
def module():
    pytest.importorskip("vllm")
    from kv_vllm.differential import scheduler

    return scheduler


@pytest.fixture
def made(monkeypatch, module):
    """How the scheduler was made: its world, its configuration, and whether it counts."""
    calls = []

    def make_scheduler(world, config, *, log_stats):
        calls.append((world, config, log_stats))
        return MagicMock(requests={})

    monkeypatch.setattr(module, "make_scheduler", make_scheduler)
    return calls


@pytest.fixture
def follower(module, made):
    def make(world=None, *, all_groups=False, requires_delivery=False):
        trace = Trace([], all_groups=all_groups, requires_delivery=requires_delivery)
        return module.VllmScheduler(world or WorldConfig(), trace, Script())

    return make


@pytest.mark.parametrize("all_groups", [True, False])
def test_its_connector_plays_the_script_as_the_recorded_one_did(follower, made, all_groups):
    world = WorldConfig(role="kv_consumer", failure_policy="fail", max_running=3)
    one = follower(world, all_groups=all_groups, requires_delivery=not all_groups)
    [(given, config, counts)] = made
    transfer = config.kv_transfer_config
    assert (given, config.world, counts) == (world, world, False)
    assert transfer.kv_connector == ("ScriptedHMAConnector" if all_groups else "ScriptedConnector")
    assert transfer.kv_connector_module_path == "kv_vllm.differential.bridge"
    assert (transfer.kv_role, transfer.kv_load_failure_policy) == ("kv_consumer", "fail")
    script = transfer.kv_connector_extra_config["kv_vllm_script"]
    assert transfer.kv_connector_extra_config == {
        "kv_vllm_script": script,
        "kv_vllm_requires_delivery": not all_groups,
    }
    pool = one._scheduler.kv_cache_manager.block_pool
    pool.blocks = ["null", "one", "two", "three"]
    for call in (PoolCall("touch", (3, 2)), PoolCall("free_blocks", (2,)), PoolCall("evict_blocks", (1, 3))):
        script.call_pool(call)
    pool.touch.assert_called_once_with(["three", "two"])
    pool.free_blocks.assert_called_once_with(["two"])
    pool.evict_blocks.assert_called_once_with({1, 3})


@pytest.mark.parametrize("skips", [True, False])
def test_a_request_that_arrives(follower, module, skips):
    """It ends where its limit is or where a token says so that nothing else is."""
    one = follower(WorldConfig(block_size=2))
    asked = Add("r", (1, 2, 3, 4, 5), 7, "salt", "adapter", skips, is_session=not skips)
    assert one.apply(asked) is None
    [call] = one._scheduler.add_request.call_args_list
    request = call.args[0]
    assert (request.request_id, request.prompt_token_ids, request.max_tokens) == ("r", [1, 2, 3, 4, 5], 7)
    assert (request.cache_salt, request.lora_request.lora_name) == ("salt", "adapter")
    assert (request.skip_reading_prefix_cache, request.resumable) == (skips, not skips)
    assert len(request.block_hashes) == 2
    params = request.sampling_params
    assert (params.ignore_eos, params.stop_token_ids) == (True, [module.STOP_TOKEN])
    assert module.STOP_TOKEN == module.VOCABULARY - 1, "the model has it, and no prompt"


@pytest.mark.parametrize("prompt", [(6, 7), ()])
def test_the_next_turn_of_a_session_and_its_end(follower, module, prompt):
    """An end has a prompt of one token, since vLLM takes no empty one, and can't be resumed."""
    one = follower()
    one.apply(NextTurn("r", prompt, 3))
    [call] = one._scheduler.add_request.call_args_list
    request = call.args[0]
    assert (request.request_id, request.max_tokens) == ("r", 3)
    assert request.prompt_token_ids == (list(prompt) or [0])
    assert request.resumable is bool(prompt)
    params = request.sampling_params
    assert (params.ignore_eos, params.stop_token_ids) == (True, [module.STOP_TOKEN])


def test_an_abort(follower):
    from vllm.v1.request import RequestStatus

    one = follower()
    assert one.apply(Abort("r", "running")) is None
    one._scheduler.finish_requests.assert_called_once_with("r", RequestStatus.FINISHED_ABORTED)


@pytest.mark.parametrize(
    ("mode", "state"), [("abort", "PAUSED_NEW"), ("wait", "PAUSED_NEW"), ("keep", "PAUSED_ALL")]
)
def test_a_pause_and_its_end(follower, mode, state):
    from vllm.v1.core.sched.interface import PauseState
    from vllm.v1.request import RequestStatus

    one = follower()
    assert one.apply(Paused(mode)) is None
    one._scheduler.set_pause_state.assert_called_once_with(PauseState[state])
    ended = [(None, RequestStatus.FINISHED_ABORTED)] if mode == "abort" else []
    assert [call.args for call in one._scheduler.finish_requests.call_args_list] == ended
    assert one.apply(Resumed()) is None
    one._scheduler.set_pause_state.assert_called_with(PauseState.UNPAUSED)


@pytest.mark.parametrize(
    ("told", "answer"), [(True, True), (1, True), (False, False), (RuntimeError("busy"), None)]
)
def test_a_reset_and_its_answer(follower, told, answer):
    """vLLM raises where a load holds blocks. Any other error is a difference."""
    one = follower()
    one._scheduler.reset_prefix_cache.side_effect = [told]
    assert one.apply(Reset(True, False)) is answer
    one._scheduler.reset_prefix_cache.assert_called_once_with(True, False)
    one._scheduler.reset_prefix_cache.side_effect = [ValueError("wrong")]
    with pytest.raises(ValueError, match="wrong"):
        one.apply(Reset(True, False))


def step_of(*names):
    """What vLLM schedules."""
    return SimpleNamespace(num_scheduled_tokens=dict.fromkeys(names, 1))


def test_the_output_of_a_step_is_what_the_trace_says(follower):
    """Steps may be under way; each output is that of its own. Who samples nothing has no tokens."""
    one = follower()
    steps = [step_of("a", "b"), step_of("c")]
    one._scheduler.schedule.side_effect = steps
    one._scheduler.has_requests.side_effect = [1, 0]
    assert [one.apply(Schedule(number)) for number in (1, 2)] == [True, False]
    report = {"finished_sending": ["x"], "finished_recving": ["y"], "failed_recving": ["z"]}
    one.apply(Process(1, {"b": Sampled((7, 8), ends=False)}, {**report, "invalid_block_ids": [3]}))
    one.apply(Process(2, {}, {}))
    assert not one._outputs
    first, second = (call.args for call in one._scheduler.update_from_output.call_args_list)
    assert (first[0], second[0]) == tuple(steps)
    assert (first[1].req_ids, first[1].req_id_to_index) == (["a", "b"], {"a": 0, "b": 1})
    assert (first[1].sampled_token_ids, second[1].sampled_token_ids) == ([[], [7, 8]], [[]])
    told = first[1].kv_connector_output
    assert (told.finished_sending, told.finished_recving) == (["x"], ["y"])
    assert (told.failed_recving, told.invalid_block_ids) == ({"z"}, {3})
    quiet = second[1].kv_connector_output
    assert (quiet.finished_sending, quiet.finished_recving) == (None, None)
    assert (quiet.failed_recving, quiet.invalid_block_ids) == (set(), set())


@pytest.mark.parametrize(
    ("drafts", "is_async", "given"), [(2, False, [[0, 0], [0, 0]]), (2, True, None), (0, False, None)]
)
def test_drafts_are_given_to_the_scheduler_that_waits_for_them(follower, drafts, is_async, given):
    """The asynchronous one has placeholders for them."""
    one = follower(WorldConfig(spec_tokens=drafts, async_scheduling=is_async, run_ahead=int(is_async)))
    one._scheduler.schedule.return_value = step_of("a", "b")
    one.apply(Schedule(1))
    one.apply(Process(1, {}, {}))
    calls = one._scheduler.update_draft_token_ids.call_args_list
    assert [(call.args[0].req_ids, call.args[0].draft_token_ids) for call in calls] == (
        [] if given is None else [(["a", "b"], given)]
    )


@pytest.mark.parametrize(
    ("sampled", "had", "tokens"),
    [
        (Sampled((7, 8), ends=False), 0, [7, 8]),
        (Sampled((7, 8), ends=True), 0, [7, "stop"]),
        (Sampled((7, 8, 0, 0), ends=True, surplus=2), 0, [7, "stop", 0, 0]),
        (Sampled((7, 8), ends=True), 2, [7, "stop"]),
        (Sampled((7, 8), ends=True), 3, [7, 8]),
        (Sampled((7, 8, 0), ends=True, surplus=1), 3, [7, 8, 0]),
        (Sampled((7, 8), ends=True), None, [7, 8]),
        (Sampled((7, 8), ends=False), None, [7, 8]),
    ],
)
def test_the_last_token_of_who_ends_before_its_limit_says_so(follower, module, sampled, had, tokens):
    """The limit is five. ``had``: what it has sampled before; None: it has gone meanwhile."""
    one = follower()
    if had is not None:
        one._scheduler.requests["r"] = SimpleNamespace(num_output_tokens=had, max_tokens=5)
    assert one._tokens("r", sampled) == [module.STOP_TOKEN if token == "stop" else token for token in tokens]
