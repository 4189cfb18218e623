"""The objects of an engine that the first family reads, as protocols with vLLM's V0 names, and a batch's prompts.

A batch begins with its prefills. ``input_tokens`` and ``slot_mapping`` are flat: one sequence after the other,
they have the tokens that this step computes, and their slots. A slot is block × block size + place in the block. A
prompt is sent and received as a whole, so one step must compute all of it.
"""

from collections.abc import Iterable
from typing import NamedTuple, Protocol

from kv_api import KVError
from kv_api.engine import Tensor
from kv_p2p.first.pipe.arrays import whole_numbers


class AttentionMetadata(Protocol):
    """The metadata of one forward pass."""

    @property
    def seq_lens(self) -> Iterable[int] | None: ...
    @property
    def slot_mapping(self) -> Tensor: ...
    @property
    def num_prefill_tokens(self) -> int: ...


class ModelInput(Protocol):
    """One batch."""

    @property
    def input_tokens(self) -> Tensor: ...
    @property
    def attn_metadata(self) -> AttentionMetadata: ...


class Layers(Protocol):
    """The layers that this worker has: ``kv_caches[0]`` is the cache of ``start_layer``."""

    @property
    def start_layer(self) -> int: ...
    @property
    def end_layer(self) -> int: ...


class ModelExecutable(Protocol):
    """The model."""

    @property
    def model(self) -> Layers: ...


class ModelInputError(KVError, ValueError):
    """A batch or its caches are not what the first family can transfer."""


class Prompt(NamedTuple):
    """One sequence of a batch that is prefilled."""

    start: int
    """The place in the batch where its tokens begin."""
    tokens: tuple[int, ...]
    slots: tuple[int, ...]

    @property
    def end(self) -> int:
        """The place in the batch after its last token."""
        return self.start + len(self.tokens)


class Batch(NamedTuple):
    """The sequences of a model input."""

    prompts: list[Prompt]
    num_decodes: int


def read_batch(model_input: ModelInput) -> Batch:
    """The prompts of a batch, and the number of its other sequences."""
    metadata = model_input.attn_metadata
    if metadata.seq_lens is None:
        raise ModelInputError("attn_metadata.seq_lens: not set, so nobody knows where a prompt begins")
    lengths = [int(length) for length in metadata.seq_lens]
    num_tokens = int(metadata.num_prefill_tokens)
    tokens = whole_numbers(model_input.input_tokens.reshape(-1)[:num_tokens], "input_tokens")
    slots = whole_numbers(metadata.slot_mapping.reshape(-1)[:num_tokens], "attn_metadata.slot_mapping")
    for name, values in (("input_tokens", tokens), ("attn_metadata.slot_mapping", slots)):
        if len(values) < num_tokens:
            raise ModelInputError(
                f"{name}: expected {num_tokens} for the tokens of the prefills, got {len(values)}"
            )
    prompts: list[Prompt] = []
    start = 0
    for length in lengths:
        if start == num_tokens:
            break
        if start + length > num_tokens:
            raise ModelInputError(
                f"attn_metadata.seq_lens: {lengths} don't add up to the {num_tokens} tokens of the prefills; "
                "a prompt is transferred whole: set enable_chunked_prefill=False and enable_prefix_caching=False"
            )
        end = start + length
        prompts.append(Prompt(start, tokens[start:end], slots[start:end]))
        start = end
    if start < num_tokens:
        raise ModelInputError(
            f"attn_metadata.seq_lens: {lengths} are less than the {num_tokens} tokens of the prefills"
        )
    return Batch(prompts, len(lengths) - len(prompts))
