"""Trajectories of agents, in ATIF: which steps are requests, and what their prompts are."""

import json

import pytest
from kv_sim_foreign_traces import lengths, shared
from kv_sim_kept_chats import NEXT, SAID, step, trajectory

from kv_api import ConfigError
from kv_sim.replay.observed import Observation
from kv_sim.replay.readers.opening import open_trace
from kv_sim.replay.readers.options import TraceOptions

ANSWER = "z" * 28
CALL = {"tool_call_id": "t", "function_name": "ls", "arguments": {}}
GIVEN_BACK = {"results": [{"source_call_id": "t", "content": "o" * 30}]}
CALLED = len('["ls", {}]')


def tokens(*spoken, before=""):
    """Of a prompt of messages, each a role and its characters, and of who answers."""
    said = (*spoken, ("assistant", 0))
    return -(-(len(before) + sum(len(f"<|{role}|>") + characters for role, characters in said)) // 4)


QUESTION = ("user", 107)


def test_a_step_of_the_agent_is_a_request_after_what_tools_gave_back(read):
    requests, notes = read(
        trajectory(
            step("system", "y" * 13, None),
            step("user", SAID, 1),
            step(
                "agent",
                ANSWER,
                2,
                reasoning_content="t" * 8,
                tool_calls=[CALL],
                observation=GIVEN_BACK,
            ),
            step("agent", "w", 7),
        )
    )
    before = ("system", 13), QUESTION
    after = tokens(*before, ("assistant", 28 + CALLED), ("tool", 30))
    assert lengths(requests) == [(0, tokens(*before), -(-(8 + 28 + CALLED) // 4)), (1, after, 1)]
    assert shared(requests[0], requests[1]) == tokens(*before) // 16
    assert notes == ("format: atif", "four characters are taken for a token")


def test_tools_come_first(read):
    tools = [{"type": "function", "function": {"name": "ls"}}]
    agent = {"name": "a", "version": "1", "tool_definitions": tools}
    requests, _ = read(trajectory(step("user", SAID, 1), step("agent", ANSWER, 2), agent=agent))
    before = f"<|tools|>{json.dumps(tools[0], sort_keys=True)}"
    assert lengths(requests) == [(0, tokens(QUESTION, before=before), 7)]


def test_counts_of_a_step_are_its_request_s(tmp_path):
    counts = {"prompt_tokens": 64, "completion_tokens": 9, "cached_tokens": 32}
    file = tmp_path / "trajectory.json"
    file.write_text(json.dumps(trajectory(step("user", SAID, 1), step("agent", ANSWER, 2, metrics=counts))))
    requests = open_trace(file)
    assert lengths(requests) == [(0, 32, 9)]
    assert [*(requests.observed or ())] == [Observation(16)], "half of what its server counted"
    assert any(note.startswith("usage says 64 prompt tokens where 32 are counted") for note in requests.notes)


def test_a_step_without_a_model_or_copied_from_an_earlier_trajectory_is_no_request(read):
    requests, _ = read(
        trajectory(
            step("user", SAID, 1),
            step("agent", ANSWER, 2, is_copied_context=True),
            step("agent", "", 3, llm_call_count=0, tool_calls=[CALL], observation=GIVEN_BACK),
            step("user", NEXT, 4),
            step("agent", "w", 5, llm_call_count=1, is_copied_context=False),
        )
    )
    spoken = QUESTION, ("assistant", 28), ("assistant", CALLED), ("tool", 30), ("user", 42)
    assert lengths(requests) == [(0, tokens(*spoken), 1)]


def test_token_ids_of_a_prompt_stand_for_its_text(read):
    ids = [*range(100, 140)]
    requests, notes = read(
        trajectory(
            step("user", SAID, 1),
            step("agent", ANSWER, 2, metrics={"prompt_token_ids": ids, "completion_tokens": 2}),
            step("agent", ANSWER, 3, metrics={"prompt_token_ids": [*ids, 1, 2], "completion_tokens": 3}),
        )
    )
    assert lengths(requests) == [(0, 40, 2), (1, 42, 3)]
    assert shared(requests[0], requests[1]) == 2
    assert notes == ("format: atif",)


def test_trajectories_of_subagents_are_read_as_well(tmp_path):
    below = trajectory(step("user", SAID, 3), step("agent", "v" * 8, 4), trajectory_id="below")
    whole = trajectory(
        step("user", SAID, 1),
        step("agent", ANSWER, 2),
        step("user", NEXT, 5),
        step("agent", ANSWER, 6),
        subagent_trajectories=[below],
    )
    file = tmp_path / "trajectory.json"
    file.write_text(json.dumps(whole))
    requests = open_trace(file, TraceOptions(sessions=True))
    assert lengths(requests) == [(0, 32, 7), (2, 32, 2), (4, 55, 7)]
    assert requests.sessions is not None
    assert requests.sessions.tolist() == [0, 1, 0]


def test_steps_may_be_written_as_text_and_have_no_times(read):
    """As rows of a dataset have them."""
    whole = trajectory(step("user", [{"type": "text", "text": SAID}], None), step("agent", ANSWER, None))
    requests, notes = read({**whole, "steps": json.dumps(whole["steps"]), "agent": json.dumps(whole["agent"])})
    assert lengths(requests) == [(0, 32, 7)]
    assert "the trace has no times: one request a second is assumed" in notes


@pytest.mark.parametrize(
    ("steps", "problem"),
    [
        (5, "steps: expected messages, got int"),
        ([5], "steps[0]: expected an object, got int"),
        ([step("robot", SAID, 1)], "steps[0].source: expected system, user, agent, got 'robot'"),
        ([step("user", SAID, 1, timestamp="soon")], "steps[0].timestamp: expected a number or a date, got 'soon'"),
        (
            [step("user", SAID, None), step("agent", "w", None), step("user", SAID, 1)],
            "steps[1]: expected a time of it, or of a message above it, got none",
        ),
        (
            [step("user", SAID, 1), step("agent", "w", 2, metrics={"completion_tokens": -1})],
            "steps[1].metrics.completion_tokens: expected a whole number of at least 0, got -1",
        ),
        (
            [step("user", SAID, 1), step("agent", "w", 2, metrics={"prompt_token_ids": ["a"]})],
            "steps[1].metrics.prompt_token_ids: expected a list of token ids, got ['a']",
        ),
        (
            [step("agent", "w", 2, observation={"results": 7})],
            "steps[0].observation.results: expected messages, got int",
        ),
        ([step("agent", "w", 2, tool_calls=[7])], "steps[0].tool_calls[0]: expected an object, got int"),
    ],
)
def test_what_a_trajectory_doesn_t_say_is_malformed(read, steps, problem):
    with pytest.raises(ConfigError) as error:
        read({**trajectory(), "steps": steps})
    assert f": {problem}" in str(error.value)


@pytest.mark.parametrize(
    ("more", "problem"),
    [
        ({"agent": {"tool_definitions": 5}}, "agent.tool_definitions: expected text or a list of parts, got int"),
        ({"subagent_trajectories": [{}]}, "subagent_trajectories[0].steps: expected a list of steps, got no such"),
    ],
)
def test_so_is_what_an_agent_or_a_subagent_doesn_t_say(read, more, problem):
    with pytest.raises(ConfigError) as error:
        read(trajectory(step("user", SAID, 1), step("agent", "w", 2), **more))
    assert f": {problem}" in str(error.value)


def test_several_trajectories_are_one_trace_of_as_many_sessions(tmp_path):
    for number, second in ((1, 5), (2, 1)):
        steps = step("user", SAID, second), step("agent", ANSWER, second + 1)
        (tmp_path / f"{number}.json").write_text(json.dumps(trajectory(*steps, session_id=str(number)), indent=1))
    requests = open_trace(tmp_path, TraceOptions(sessions=True))
    assert lengths(requests) == [(0, 32, 7), (4, 32, 7)]
    assert requests.sessions is not None and len({*requests.sessions.tolist()}) == 2


def test_a_step_may_be_of_another_model_than_its_agent_s(read):
    asked = step("user", SAID, 1)
    requests, notes = read(trajectory(asked, step("agent", ANSWER, 2), step("agent", "w", 3, model_name="n")))
    assert "requests of 2 models, none of which can use another's blocks: m, n" in notes
    assert shared(*requests) == 0


def test_what_has_steps_of_another_version_is_no_trajectory(read):
    with pytest.raises(ConfigError, match="no known format has the fields schema_version, session_id, agent, st"):
        read(trajectory(step("user", SAID, 1), step("agent", ANSWER, 2), schema_version="2"))
