"""Text that a model's tokenizer cuts: how many tokens, which blocks, and what is refused."""

import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from tokenizers import Tokenizer, models, pre_tokenizers

from kv_api import ConfigError
from kv_sim.cli.main import main
from kv_sim.replay.readers.requests import text

WORDS = [f"w{number}" for number in range(60)]
Read = Callable[..., tuple[list[Any], tuple[str, ...]]]


@pytest.fixture
def tokenizer(tmp_path: Path) -> Path:
    """Of a model whose tokens are words and marks: ``<|user|>`` are three, ``<|``, ``user`` and ``|>``."""
    vocabulary = {word: number for number, word in enumerate(["?", "<|", "|>", "user", "assistant", *WORDS])}
    made = Tokenizer(models.WordLevel(vocabulary, unk_token="?"))
    made.pre_tokenizer = pre_tokenizers.Whitespace()
    folder = tmp_path / "model"
    folder.mkdir()
    made.save(str(folder / "tokenizer.json"))
    return folder / "tokenizer.json"


def prompt(*words: str) -> dict[str, Any]:
    return {"prompt": " ".join(words), "output_tokens": 3}


def test_a_token_is_what_the_tokenizer_says(read: Read, tokenizer: Path) -> None:
    records = [prompt(*WORDS[:40]), prompt(*WORDS[:32], "w3"), prompt("w59", *WORDS[1:33])]
    found, notes = read(*records, tokenizer=tokenizer)
    assert [request.input_tokens for request in found] == [40, 33, 33]
    first, second, third = (list(request.blocks) for request in found)
    assert first[:2] == second[:2] and first[2] != second[2]
    assert not {*first} & {*third}
    assert notes[:2] == ("format: vllm", f"tokens are those of {tokenizer}")
    assumed, notes = read(*records)
    assert [request.input_tokens for request in assumed] == [38, 30, 31]
    assert notes[1] == "four characters are taken for a token"


def test_the_folder_of_a_model_will_do(read: Read, tokenizer: Path) -> None:
    assert read(prompt("w1"), tokenizer=tokenizer.parent) == read(prompt("w1"), tokenizer=tokenizer)


def test_text_and_token_ids_are_the_same_prompt(read: Read, tokenizer: Path) -> None:
    ids = [5 + number for number in range(40)]
    (as_text, as_ids), notes = read(prompt(*WORDS[:40]), {"prompt": ids}, tokenizer=tokenizer)
    assert list(as_text.blocks) == list(as_ids.blocks)
    _, notes = read({"prompt": ids}, tokenizer=tokenizer)
    assert f"tokens are those of {tokenizer}" not in notes, "no text was cut"


@pytest.mark.parametrize("size", [None, 8, 32])
@pytest.mark.parametrize("kind", ["characters", "tokenizer", "ids"])
def test_blocks_are_as_large_as_wanted(read: Read, tokenizer: Path, kind: str, size: int | None) -> None:
    """Each block is named by all of it, so two prompts share what they share of that size."""
    one, other = (
        {"prompt": [5, 6] * 12 + [last, 7] * 20}
        if kind == "ids"
        else {"prompt": "w1 w" * 24 + f"{last} w{last}" * 32}
        for last in (1, 2)
    )
    options = {"tokenizer": tokenizer} if kind == "tokenizer" else {}
    found, notes = read(one, other, block_tokens=size, **options)
    tokens, size = found[0].input_tokens, size or 16
    assert [len(request.blocks) for request in found] == [-(-tokens // size)] * 2
    assert not any("ids" in note for note in notes)
    same = [a == b for a, b in zip(found[0].blocks, found[1].blocks, strict=True)]
    assert same.index(False) == 24 // size


def test_turns_of_a_chat_share_what_they_begin_with(read: Read, tokenizer: Path) -> None:
    """A mark ``<|user|>`` is three tokens here, and a message is behind one."""
    first = {"role": "user", "content": " ".join(WORDS[:30])}
    answer = {"role": "assistant", "content": " ".join(WORDS[30:40])}
    turns = [[first], [first, answer, {"role": "user", "content": "w1"}]]
    records = [{"messages": turn, "response": "w1 w2 w3"} for turn in turns]
    (one, two), notes = read(*records, tokenizer=tokenizer)
    assert [one.input_tokens, two.input_tokens] == [3 + 30 + 3, 3 + 30 + 3 + 10 + 3 + 1 + 3]
    assert [one.output_tokens, two.output_tokens] == [3, 3]
    assert list(one.blocks[:2]) == list(two.blocks[:2])
    assert notes[:2] == ("format: openai", f"tokens are those of {tokenizer}")


def test_half_a_character_is_a_character_that_nobody_knows(read: Read, tokenizer: Path) -> None:
    """JavaScript leaves one where it cuts a text; two of them that belong together are whole."""
    cut, whole = "w1 \ud83d w2", "w1 \ud83d\ude00 w2"
    records = [
        {"messages": [{"role": "user", "content": said}], "response": said} for said in (cut, "w1 ? w2", whole)
    ]
    found, _ = read(*records, tokenizer=tokenizer)
    assert [(request.input_tokens, request.output_tokens) for request in found] == [(3 + 3 + 3, 3)] * 3
    assert len({request.blocks for request in found}) == 1


def test_answers_of_conversations_are_counted_too(read: Read, tokenizer: Path) -> None:
    spoken = [("human", "w1 w2"), ("gpt", "w3 w4 w5"), ("human", "w6"), ("gpt", "w7")]
    record = {"conversations": [{"from": who, "value": said} for who, said in spoken]}
    found, notes = read(record, tokenizer=tokenizer)
    assert [(r.input_tokens, r.output_tokens) for r in found] == [(3 + 2 + 3, 3), (3 + 2 + 3 + 3 + 3 + 1 + 3, 1)]
    assert notes[1] == f"tokens are those of {tokenizer}, a minute for the time between two turns"
    _, notes = read(record)
    assert notes[1] == "four characters are taken for a token, a minute for the time between two turns"


def test_a_message_is_cut_once(tokenizer: Path) -> None:
    cutter, cut = text.ByTokenizer(tokenizer), []
    encode = cutter._tokenizer.encode

    class Counting:
        def encode(self, said: str, add_special_tokens: bool) -> Any:
            cut.append(said)
            return encode(said, add_special_tokens=add_special_tokens)

    cutter._tokenizer = Counting()
    for turns in range(1, 5):
        tokens, _ = cutter.blocks_of([f"w{turn}" for turn in range(turns)], 16)
        assert tokens == turns
    assert cut == ["w0", "w1", "w2", "w3"]


def test_special_tokens_are_the_templates_to_add(tmp_path: Path, tokenizer: Path) -> None:
    """No tokenizer adds a beginning to each message."""
    from tokenizers.processors import TemplateProcessing

    made = Tokenizer.from_file(str(tokenizer))
    made.post_processor = TemplateProcessing(single="? $A", special_tokens=[("?", 0)])
    made.save(str(tmp_path / "begins.json"))
    assert len(made.encode("w1 w2").ids) == 3
    assert text.ByTokenizer(tmp_path / "begins.json").blocks_of(["w1 w2", "w3"], 16)[0] == 3


def test_nothing_is_cut_off_or_filled_up(tmp_path: Path, tokenizer: Path) -> None:
    made = Tokenizer.from_file(str(tokenizer))
    made.enable_truncation(max_length=5)
    made.enable_padding(length=4)
    made.save(str(tmp_path / "cuts.json"))
    assert text.ByTokenizer(tmp_path / "cuts.json").blocks_of([" ".join(WORDS[:30]), "w3"], 16)[0] == 31


# -- what is refused ---------------------------------------------------------------------------


def test_what_is_no_tokenizer(read: Read, tmp_path: Path) -> None:
    with pytest.raises(ConfigError) as raised:
        read(prompt("w1"), tokenizer=tmp_path / "gone.json")
    said = "there is no such file; it is the tokenizer.json beside a model's weights"
    assert str(raised.value) == f"--tokenizer {tmp_path}/gone.json: {said}"
    (tmp_path / "empty").mkdir()
    with pytest.raises(ConfigError, match=r"--tokenizer .*/empty/tokenizer.json: there is no such file"):
        read(prompt("w1"), tokenizer=tmp_path / "empty")
    (tmp_path / "odd.json").write_text('{"a": 1}')
    with pytest.raises(ConfigError, match=rf"^--tokenizer {tmp_path}/odd.json: "):
        read(prompt("w1"), tokenizer=tmp_path / "odd.json")


def test_a_format_without_text_has_nothing_to_cut(read: Read, tokenizer: Path) -> None:
    record = {"timestamp": 0, "input_length": 20, "output_length": 1, "hash_ids": [1]}
    with pytest.raises(ConfigError, match="--tokenizer: a record of format mooncake has no text"):
        read(record, tokenizer=tokenizer)


def test_the_package_is_asked_for(read: Read, tokenizer: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "tokenizers", None)
    with pytest.raises(ConfigError) as raised:
        read(prompt("w1"), tokenizer=tokenizer)
    assert str(raised.value) == "--tokenizer needs the package tokenizers: pip install 'kv-sim[tokenizer]'"
    assert read(prompt("w1"))[0][0].input_tokens == 1, "nobody else needs it"


def test_the_command(tmp_path: Path, tokenizer: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "prompts.jsonl"
    file.write_text("".join(json.dumps(prompt(*WORDS[:40])) + "\n" for _ in range(3)))
    assert main(["replay", str(file), "--tokenizer", str(tokenizer), "--capacity", "100blocks"]) == 0
    out = capsys.readouterr().out
    assert "120 prompt tokens, 9 blocks of 16 tokens, 3 different ones" in out
    assert f"tokens are those of {tokenizer}" in out
    assert main(["replay", str(file), "--tokenizer", "nowhere"]) == 2
    assert "kv-sim replay: --tokenizer nowhere: there is no such file" in capsys.readouterr().err
