"""The comparison that the smoke test makes."""

from kv_vllm.smoke import SHARED_TOKENS, Told, compare, prompts


def test_prompts_share_their_beginning():
    made = prompts(1000)
    assert {tuple(prompt[:SHARED_TOKENS]) for prompt in made} == {tuple(made[0][:SHARED_TOKENS])}
    assert len({len(prompt) for prompt in made}) == len(made)
    assert max(map(max, made)) < 1000


def test_the_same_is_fine():
    told = Told([[1, 2]], [[1, 2]], SHARED_TOKENS, "0.33")
    assert compare(Told([[1, 2]], [[1, 2]], 0, "0.33"), told) == []


def test_each_difference_is_a_line():
    without = Told([[1, 2], [3, 4]], [[1, 2], [3, 4]], 0, "0.33")
    assert compare(without, Told([[1, 2], [3, 4]], [[1, 2], [3, 5]], 0, "0.33")) == [
        "prompt 1, warm: token 1 is [5], without [4]",
        f"0 tokens were loaded, expected at least {SHARED_TOKENS}",
    ]
