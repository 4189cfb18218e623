"""How errors are worded: unknown names with the nearest known one, and keys that are misspelt."""

import pytest

import kv_api
from kv_api.errors import did_you_mean, nearest_name, refuse_misspelt, unknown_name


@pytest.mark.parametrize(
    ("value", "known", "text"),
    [
        ("lruu", ["lru", "arc"], "unknown policy 'lruu'; known: arc, lru; did you mean 'lru'?"),
        ("LRU", ["lru", "arc"], "unknown policy 'LRU'; known: arc, lru; did you mean 'lru'?"),
        ("zzz", ["lru"], "unknown policy 'zzz'; known: lru"),
        ("x", [], "unknown policy 'x'; known: none"),
        (3, ["lru"], "unknown policy 3; known: lru"),
    ],
)
def test_an_unknown_name_lists_the_known_ones_and_the_nearest(value: object, known: list[str], text: str) -> None:
    assert unknown_name("policy", value, known) == text
    assert unknown_name("policy", value, known, hint="see there") == f"{text}; see there"


def test_a_name_is_near_however_its_letters_are_written() -> None:
    assert nearest_name("lru", ["ARC", "LRU"]) == "LRU"


def test_no_name_is_near_to_something_that_is_no_name() -> None:
    assert nearest_name(None, ["None"]) is None


TWENTY = "abcdefghijklmnopqrst"


@pytest.mark.parametrize(
    "key",
    [
        "hold_block",
        "hold_blcoks",
        "Hold_Blocks",
        "hold-blocks",
        f"my_{TWENTY[:19]}",
        "myhold_blocks",
        "sav",
        "saved",
        f"{TWENTY[:17]}---",
    ],
)
def test_a_key_that_is_nearly_known_is_refused(key: str) -> None:
    known = {"save", "hold_blocks", TWENTY}
    meant = nearest_name(key, known)
    told = f"extra: unknown key {key!r}; known: {TWENTY}, hold_blocks, save; did you mean {meant!r}?"
    for hint, end in (("", ""), ("see there", "; see there")):
        with pytest.raises(kv_api.ConfigError) as refused:
            refuse_misspelt({"save": 1, key: 2}, known, where="extra", hint=hint)
        assert str(refused.value) == told + end


@pytest.mark.parametrize(
    "key",
    ["save", "hold_blocks", "swap", "hold", "my_hold_blocks", "hold_blocks_s", f"{TWENTY[:16]}----", "evasa", 7],
)
def test_a_key_that_is_known_or_far_from_that_is_let_be(key: object) -> None:
    refuse_misspelt([key], ("save", "hold_blocks", TWENTY), where="extra")
    refuse_misspelt([key], (), where="extra")


@pytest.mark.parametrize(("key", "meant"), [("prot", "port"), ("hots", "host"), ("Svae", "save")])
def test_letters_in_another_order_are_a_slip(key: str, meant: str) -> None:
    known = ("port", "host", "save", "hold_blocks")
    with pytest.raises(kv_api.ConfigError) as refused:
        refuse_misspelt([key], known, where="extra")
    assert (
        str(refused.value)
        == f"extra: unknown key {key!r}; known: hold_blocks, host, port, save; did you mean {meant!r}?"
    )


def test_a_known_key_is_never_taken_for_another_that_is_written_alike() -> None:
    refuse_misspelt(["Save", "save"], ("Save", "save"), where="extra")


def test_without_a_hint_the_error_ends_with_the_nearest_key() -> None:
    with pytest.raises(kv_api.ConfigError, match=r"; did you mean 'hold_blocks'\?$"):
        refuse_misspelt(["hold_block"], ("hold_blocks",), where="extra")


@pytest.mark.parametrize(("value", "said"), [("appel", "; did you mean 'apple'?"), ("x", ""), ([], "")])
def test_the_end_of_an_error_points_at_a_name_that_is_close(value: object, said: str) -> None:
    assert did_you_mean(value, ["pear", "apple"]) == said
