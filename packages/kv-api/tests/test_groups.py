"""What the layers of a KV cache group are, from a spec that names its kind."""

from types import SimpleNamespace
from typing import Any

import pytest

from kv_api import AttentionKind, ConfigError
from kv_api.groups import GroupDescription, describe_group, described, workers_of


def spec(**values: Any) -> Any:
    return SimpleNamespace(**{"block_size": 4, **values})


@pytest.mark.parametrize(
    ("of", "described"),
    [
        (spec(kind="full_attention"), GroupDescription(AttentionKind.FULL, 4)),
        (spec(kind="full_attention", sliding_window=64), GroupDescription(AttentionKind.FULL, 4)),
        (spec(kind="state_space", sliding_window=64), GroupDescription(AttentionKind.STATE_SPACE, 4)),
        (spec(kind="full_attention", page_size_bytes=96), GroupDescription(AttentionKind.FULL, 4, 0, 96)),
        (spec(kind="sliding_window", sliding_window=6), GroupDescription(AttentionKind.SLIDING_WINDOW, 4, 6)),
        (spec(kind="sliding_window", sliding_window=1), GroupDescription(AttentionKind.SLIDING_WINDOW, 4, 1)),
        (spec(kind="state_space"), GroupDescription(AttentionKind.STATE_SPACE, 4)),
        (
            spec(kind="state_space", hands_over_states=True),
            GroupDescription(AttentionKind.STATE_SPACE, 4, is_handed_over=True),
        ),
        (spec(kind="full_attention", hands_over_states=True), GroupDescription(AttentionKind.FULL, 4)),
    ],
)
def test_a_spec_says_what_it_is(of: Any, described: GroupDescription) -> None:
    assert describe_group(of) == described
    assert type(describe_group(of).kind) is AttentionKind


def test_what_is_not_said_of_a_group_is_nothing() -> None:
    nothing = (0, 0, 0, False)  # window_tokens, page_size_bytes, restart_tokens, is_handed_over
    assert GroupDescription(AttentionKind.FULL, 4) == GroupDescription(AttentionKind.FULL, 4, *nothing)


def engine(**parallel: int) -> Any:
    return SimpleNamespace(parallel_config=SimpleNamespace(**parallel))


@pytest.mark.parametrize(
    ("of", "of_engine", "workers"),
    [
        (spec(dcp_sharded=True), engine(decode_context_parallel_size=3), 3),
        (spec(dcp_sharded=False), engine(decode_context_parallel_size=3), 1),
        (spec(), engine(decode_context_parallel_size=3), 1),
        (spec(dcp_sharded=True), engine(), 1),
    ],
)
def test_a_block_is_as_long_as_all_workers_parts_of_it(of: Any, of_engine: Any, workers: int) -> None:
    """Where its spec says that there are some: one that doesn't counts all of them itself."""
    of.kind, of.sliding_window, of.page_size_bytes = "sliding_window", 6, 96
    assert workers_of(of_engine, of) == workers
    expected = GroupDescription(AttentionKind.SLIDING_WINDOW, 4 * workers, 6, 96)
    assert described(of_engine, of, describe_group) == expected


@pytest.mark.parametrize(
    ("of", "message"),
    [
        (
            spec(),
            "kv_cache_spec SimpleNamespace has no attribute 'kind', which connectors of this interface read; "
            "inside vLLM use the connector class of kv-vllm",
        ),
        (
            spec(kind="linear"),
            "kv_cache_spec.kind: got 'linear'; choices: full_attention, sliding_window, state_space",
        ),
        (spec(kind="sliding_window"), "kv_cache_spec.sliding_window: expected at least 1 token, got 0"),
    ],
)
def test_a_spec_that_says_nothing_usable_is_refused_in_these_words(of: Any, message: str) -> None:
    with pytest.raises(ConfigError) as raised:
        describe_group(of)
    assert str(raised.value) == message
