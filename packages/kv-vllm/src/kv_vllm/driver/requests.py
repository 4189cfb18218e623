"""The requests that vLLM gets for the testbed's: new ones, next turns of sessions, and what their clients say."""

from typing import Any

from vllm.exceptions import VLLMValidationError
from vllm.sampling_params import SamplingParams
from vllm.v1.request import Request

from kv_sim.engine.request_spec import RequestSpec, Turn
from kv_vllm.driver.ledger import Twin
from kv_vllm.vllm_scheduler import make_request


def request_of(twin: Twin) -> Request:
    """The request that vLLM gets for a twin, which takes over its block hashes."""
    spec, size = twin.spec, twin.tokens_per_hash

    def hashes_of(tokens: list[int]) -> list[bytes]:
        whole = make_request("whole", tokens, SamplingParams(max_tokens=1), size, (spec.salt, spec.adapter))
        return list(whole.block_hashes)

    twin.take_hashes(hashes_of)
    params = _sampling(twin, 0, spec)
    request = make_request(spec.request_id, list(spec.prompt), params, size, (spec.salt, spec.adapter))
    request.skip_reading_prefix_cache = spec.skip_reading_prefix_cache
    request.resumable = spec.turns is not None
    return request


def handed_on(params: Any) -> Any:
    """What a scheduler gets of a client's ``kv_transfer_params``.

    What is no object ends in vLLM's frontend, which looks into it; unless it is empty.
    """
    return params if isinstance(params, dict) or not params else None


def extra_args_of(params: Any) -> dict[str, Any] | None:
    """A client's words in the sampling parameters, where vLLM has them from. Some integers are refused there."""
    extra_args = {"kv_transfer_params": params}
    try:
        SamplingParams(extra_args=extra_args)
    except VLLMValidationError:
        return None
    return None if params is None else extra_args


def turn_of(twin: Twin) -> Request:
    """What vLLM gets for the turn of a session that arrives now, or for the end of it."""
    spec, number = twin.spec, twin.turns_arrived
    turns = spec.turns or ()
    if number > len(turns):
        return make_request(spec.request_id, [0], SamplingParams(max_tokens=1), twin.tokens_per_hash)
    params = _sampling(twin, number, turns[number - 1])
    request = make_request(spec.request_id, list(spec.said_in(number)), params, twin.tokens_per_hash)
    request.resumable = True
    return request


def _sampling(twin: Twin, turn: int, asked: RequestSpec | Turn) -> SamplingParams:
    """So that it stops where its twin does."""
    story, most = twin.stories[turn], asked.max_tokens
    output = story.tokens[story.prompt_tokens :][: asked.output_tokens]
    if asked.output_tokens == most:
        return SamplingParams(max_tokens=most, ignore_eos=True)
    if output.index(output[-1]) == len(output) - 1:
        return SamplingParams(max_tokens=most, ignore_eos=True, stop_token_ids=[output[-1]])
    return SamplingParams(max_tokens=asked.output_tokens, ignore_eos=True)  # it would stop too early
