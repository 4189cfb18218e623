"""``SimpleConnector``: moves whole prompts from a prefilling engine to a decoding one, by a ``SimpleBuffer``.

The producer of each rank listens, and the consumer of that rank connects; both constructors return when the two
are connected. After a prefill the producer inserts each prompt of the batch into the buffer: its tokens, the keys
and values of all layers, and its hidden states. Before a prefill the consumer selects each prompt of its batch and
writes the received KV to the prompt's slots. It skips the forward pass if *all* of *every* sequence was received.
Otherwise the engine computes the whole batch, and overwrites what was received.

A prompt is received only if the entry has exactly its tokens. A lookup buffer may answer with a longer or shorter
entry; that one is ignored. When one engine is gone the other one goes on alone, after a warning.
"""

from typing import Any

from kv_api import KVConnectorBase, VllmConfig, WrongSideError
from kv_api.engine import Tensor
from kv_p2p import log
from kv_p2p.first.lookup_buffer.simple import SimpleBuffer
from kv_p2p.first.model_input import ModelExecutable, ModelInput, ModelInputError, Prompt, read_batch
from kv_p2p.first.options import Options, read_options
from kv_p2p.first.paged import PagedCaches
from kv_p2p.first.pipe.arrays import all_true, concatenate, describe, kind_of, on_host, whole_numbers
from kv_p2p.first.pipe.base import PipeClosedError
from kv_p2p.first.pipe.rendezvous import Listener, Pipes, connect


class SimpleConnector(KVConnectorBase):
    """A connector of the first family for one worker of one engine."""

    def __init__(self, rank: int, local_rank: int, config: VllmConfig) -> None:
        transfer: Any = config.kv_transfer_config
        self._options = read_options(transfer, rank)
        pipes = _find_other_side(self._options, rank)
        self._buffer = SimpleBuffer(
            pipes.signal,
            pipes.data,
            self._options.buffer_bytes,
            wait_seconds=self._options.wait_seconds,
        )
        self._is_alone = False
        self._is_closed = False
        if self._options.role == "kv_producer":
            try:
                self._buffer.start_answering()
            except BaseException:
                pipes.close()
                raise

    def send_kv_caches_and_hidden_states(
        self,
        model_executable: ModelExecutable,
        model_input: ModelInput,
        kv_caches: list[Tensor],
        hidden_or_intermediate_states: Tensor | None,
    ) -> None:
        """Insert each prompt of the batch. Returns when they are in the buffer, and it is within its threshold.

        Sequences that decode are not sent.
        """
        self._require("kv_producer", "send_kv_caches_and_hidden_states")
        batch, caches = read_batch(model_input), PagedCaches(model_executable, kv_caches)
        all_tokens, hidden = model_input.input_tokens.reshape(-1), hidden_or_intermediate_states
        num_tokens = batch.prompts[-1].end if batch.prompts else 0
        if hidden is not None:
            _check_hidden(hidden, num_tokens)
        for prompt in batch.prompts:
            if self._is_alone:
                return
            tokens = on_host(all_tokens[prompt.start : prompt.end])
            own_hidden = None if hidden is None else on_host(hidden[prompt.start : prompt.end])
            keys, values = caches.read(prompt.slots)
            try:
                self._buffer.insert(tokens, all_true(tokens), keys, values, own_hidden)
            except PipeClosedError as error:
                self._go_on_alone(error)

    def recv_kv_caches_and_hidden_states(
        self, model_executable: ModelExecutable, model_input: ModelInput, kv_caches: list[Tensor]
    ) -> tuple[Tensor | None, bool, ModelInput]:
        """Select each prompt of the batch, and write the received KV to its slots.

        If all prompts were received, returns the hidden states of the batch, True and the model input; otherwise
        None, False and the model input, unchanged.
        """
        self._require("kv_consumer", "recv_kv_caches_and_hidden_states")
        batch, caches = read_batch(model_input), PagedCaches(model_executable, kv_caches)
        all_tokens = model_input.input_tokens.reshape(-1)
        came = [self._receive(prompt, all_tokens, caches) for prompt in batch.prompts]
        whole = [hidden for hidden in came if hidden is not None]
        if not whole or len(whole) < len(batch.prompts) + batch.num_decodes:
            return None, False, model_input
        return concatenate(whole), True, model_input

    def close(self) -> None:
        """Close the connections. Prompts that the consumer did not take are dropped."""
        self._is_closed = True
        self._buffer.close()

    def check(self) -> None:
        """Recount."""
        self._buffer.check()

    def _receive(self, prompt: Prompt, all_tokens: Tensor, caches: PagedCaches) -> Tensor | None:
        """Take a prompt out of the buffer and write it to its slots.

        Returns its hidden states, or None if not all of it was received.
        """
        if self._is_alone:
            return None
        asked = all_tokens[prompt.start : prompt.end]
        try:
            tokens, _, keys, values, hidden = self._buffer.drop_select(asked, all_true(asked))
        except PipeClosedError as error:
            self._go_on_alone(error)
            return None
        if tokens is None or whole_numbers(tokens, "tokens") != prompt.tokens or keys is None or values is None:
            return None
        caches.write(prompt.slots, keys, values)
        is_whole = hidden is not None and hidden.shape and hidden.shape[0] == len(prompt.tokens)
        return caches.beside(hidden) if is_whole else None

    def _go_on_alone(self, error: PipeClosedError) -> None:
        if self._is_closed:
            raise error
        self._is_alone = True
        other = "consumer" if self._options.role == "kv_producer" else "producer"
        log.warn("no KV is transferred any more, the %s is gone: %s", other, error)

    def _require(self, role: str, method: str) -> None:
        if self._options.role != role:
            raise WrongSideError(f"{method} is for a {role}, and this connector's kv_role is {self._options.role}")
        if self._is_closed:
            raise PipeClosedError(f"{method} was called after close")


def _check_hidden(hidden: Tensor, num_tokens: int) -> None:
    kind_of(hidden, "hidden_or_intermediate_states")
    if len(hidden.shape) < 1 or hidden.shape[0] < num_tokens:
        raise ModelInputError(
            f"hidden_or_intermediate_states: expected rows for {num_tokens} tokens, got {describe(hidden)}"
        )


def _find_other_side(options: Options, rank: int) -> Pipes:
    if options.role == "kv_consumer":
        return connect(options.host, options.port, rank, options.connect_seconds)
    listener = Listener(options.host, options.port)
    try:
        return listener.accept(rank, options.connect_seconds)
    finally:
        listener.close()
