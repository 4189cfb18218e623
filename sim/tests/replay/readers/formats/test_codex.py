"""Rollouts of Codex: what stood above an answer is what a model was asked."""

import json

import pytest
from kv_sim_foreign_traces import SAID, lengths, rolled
from kv_sim_transcripts import ROLE, counted, item, tokens, told

from kv_api import ConfigError
from kv_sim.replay.readers.opening import open_trace
from kv_sim.replay.readers.record import Record
from kv_sim.replay.readers.requests.text import Text


def test_items_of_a_model_in_a_row_are_one_answer(read):
    instructions = rolled(0, "session_meta", id="s", base_instructions={"text": "i" * 44})
    requests, notes = read(
        instructions,
        rolled(0.5, "turn_context", model="m"),
        counted(0.7, input_tokens=1, output_tokens=1),
        told(1, SAID),
        item(2, "reasoning", summary=[], encrypted_content="q" * 90),
        item(3, "function_call", name="ls", call_id="x"),
        counted(3.5),
        counted(3.6, input_tokens=64, output_tokens=11),
        counted(3.7, input_tokens=1, output_tokens=1),
        item(4, "function_call_output", call_id="x", output="o" * 50),
        item(6, "message", role="assistant", content=[{"type": "output_text", "text": "z" * 27}]),
        item(7, "message", role="assistant", content=[{"type": "output_text", "text": "z" * 27}]),
    )
    begin = len("<|instructions|>") + 44
    thought, asked, gave = {"type": "reasoning", "summary": []}, {"name": "ls"}, {"output": "o" * 50}
    items = [
        f"<|{one['type']}|>{json.dumps(one, sort_keys=True)}"
        for one in (
            thought,
            {**asked, "type": "function_call", "call_id": "x"},
            {**gave, "type": "function_call_output", "call_id": "x"},
        )
    ]
    first = begin + ROLE["user"] + 107
    after = [text + ROLE["assistant"] for text in (first, first + sum(map(len, items)))]
    assert lengths(requests) == [(0, -(-after[0] // 4), 11), (3, -(-after[1] // 4), 20)]
    assert notes[0] == "format: codex"
    assert notes[1].endswith(", tools, which a rollout leaves out, are not counted")
    assert f"usage says 64 prompt tokens where {-(-after[0] // 4)} are counted here" in notes[2]


@pytest.mark.parametrize(
    "kind", ["reasoning", "function_call", "custom_tool_call", "local_shell_call", "web_search_call"]
)
def test_what_a_model_does_is_its_answer_and_what_comes_of_it_is_not(read, kind):
    requests, _ = read(told(1, SAID), item(2, kind), item(4, f"{kind}_output"), item(5, kind))
    done = len(f'<|{kind}|>{{"type": "{kind}"}}<|{kind}_output|>{{"type": "{kind}_output"}}')
    assert [(one.arrival_seconds, one.input_tokens) for one in requests] == [(0, 32), (3, -(-(128 + done) // 4))]


def test_what_comes_first_is_that_of_the_first_line_though_it_went_on_from_another(read):
    begun = [rolled(0, "session_meta", id="s", instructions="i" * 44), rolled(0, "session_meta", id="t")]
    requests, _ = read(*begun, told(1, SAID), told(2, "z", "assistant"))
    assert [one.input_tokens for one in requests] == [-(-(len("<|instructions|>") + 44 + 128) // 4)]


@pytest.mark.parametrize(
    ("compacted", "left"),
    [
        ({"message": "m" * 43}, 43),
        ({"message": "?", "replacement_history": [{"type": "message", "role": "user", "content": "r" * 63}]}, 63),
    ],
)
def test_a_compacted_session_goes_on_with_what_took_its_place(read, compacted, left):
    requests, _ = read(
        told(1, SAID),
        told(2, "z" * 27, "assistant"),
        rolled(3, "compacted", **compacted),
        told(4, "z" * 7, "assistant"),
        told(5, "y" * 3),
        told(6, "z", "assistant"),
    )
    assert [(one.arrival_seconds, one.input_tokens) for one in requests] == [
        *((0, 32), (2, tokens(("user", left))), (4, tokens(("user", left), ("assistant", 7), ("user", 3)))),
    ]


@pytest.mark.parametrize("before", [[], [told(1, SAID)]])
@pytest.mark.parametrize(
    ("bad", "reason"),
    [
        (
            item(2, "message", role="user", content=5),
            "input[0].content: expected text or a list of parts, got int",
        ),
        (rolled(2, "compacted", replacement_history=[5]), "input[0]: expected an object, got int"),
    ],
)
def test_an_item_that_can_not_be_read_is_said(tmp_path, before, bad, reason):
    file = tmp_path / "trace.jsonl"
    lines = [*before, bad, told(3, "z", "assistant")]
    file.write_text("".join(f"{json.dumps(line)}\n" for line in lines))
    with pytest.raises(ConfigError) as refused:
        open_trace(file)
    said = f"in it or above it, {reason} (--on-error skip goes on)"
    assert str(refused.value) == f"{file}:{len(lines)}: {said}"


@pytest.mark.parametrize("change", [{"payload": None}, {"payload": "text"}, {"type": None}, {"type": 5}])
def test_a_line_that_holds_no_item_says_nothing(read, change):
    lines = [told(1, SAID), told(2, "z" * 27, "assistant"), told(4, "y" * 43), told(5, "z", "assistant")]
    odd = {name: value for name, value in {**told(3, "?"), **change}.items() if (name, value) != ("type", None)}
    requests, _ = read(*lines[:2], odd, *lines[2:])
    assert lengths(requests) == lengths(read(*lines)[0])
    assert len(requests) == 2


def test_a_model_that_answers_what_nobody_said_does_so_when_it_says_it(read):
    requests, _ = read(told(2, "z", "assistant"), told(3, SAID), told(5, "z", "assistant"))
    assert [(one.arrival_seconds, one.input_tokens) for one in requests] == [
        *((0, tokens()), (1, tokens(("assistant", 1), ("user", 107)))),
    ]


@pytest.mark.parametrize("as_tokens", [False, True])
def test_what_turns_have_alike_is_held_once(as_tokens):
    """All turns of a trace are held until they are sorted, and each has all of what is before it."""
    text, cut = Text(None, 16), []
    for prompt in ["a" * 640, "x" * 99, "a" * 640 + "b" * 320, "x" * 99 + "b" * 70, "a" * 600, "a" * 320]:
        what = {"tokens": [*map(ord, prompt)]} if as_tokens else {"text": [prompt]}
        cut.append(Record(0, 0, 0, None, **what))
        text.cut(cut[-1])
    step = 16 if as_tokens else 64
    assert [len(one.ids) for one in cut] == [-(-size // step) for size in (640, 99, 960, 169, 600, 320)]
    different = {block for one in cut for block in one.ids}
    assert len({id(block) for one in cut for block in one.ids}) == len(different)


@pytest.mark.parametrize("forked", ["in the first line", "by a second one"])
def test_what_was_copied_of_another_session_isn_t_asked_again(read, forked):
    meta = {"forked_from_id": "t"} if forked == "in the first line" else {}
    begun = [rolled(10, "session_meta", id="s", **meta)]
    begun += [] if meta else [rolled(10.001, "session_meta", id="t")]
    copied = [
        told(10.01, SAID),
        told(10.02, "z" * 27, "assistant"),
        told(0.5, "y" * 30),
        told(1, "w", "assistant"),
    ]
    own = [told(10.6, "y" * 43), told(12, "z", "assistant")]
    requests, notes = read(*begun, *copied, *own)
    whole = tokens(("user", 107), ("assistant", 27), ("user", 30), ("assistant", 1), ("user", 43))
    assert lengths(requests) == [(0, whole, 4)]
    assert "2 requests were left out: asked in a session that this one was forked off" in notes
    alone = [rolled(10, "session_meta", id="s"), *copied[:2]]
    assert lengths(read(*alone)[0]) == [(0, 32, 10)], "fast, and its own"
