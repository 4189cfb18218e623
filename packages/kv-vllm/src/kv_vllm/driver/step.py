"""``VllmStep``: a step of vLLM's scheduler in flight: what its devices compute, and what the model samples."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from vllm.v1.outputs import ModelRunnerOutput

from kv_sim.config import WorldConfig
from kv_sim.engine.output import Step
from kv_sim.engine.scheduler import RejectDrafts
from kv_sim.memory.launched import Attention
from kv_vllm.driver.ledger import Twin


class Stint(NamedTuple):
    """A turn of a request, from when it gets blocks until it is preempted: drafts count within one stint."""

    twin: int
    num_preemptions: int
    turn: int


@dataclass
class VllmStep(Step):
    """A step in flight, with the parts that only vLLM's engine needs."""

    stints: dict[str, Stint] = field(default_factory=dict)
    """The stint of each request."""
    tokens: dict[str, list[int]] = field(default_factory=dict)
    """The tokens that each request samples."""

    def attend(
        self,
        twin: Twin,
        count: int,
        tables: Iterable[Sequence[int]],
        earlier: Iterable[Step],
        reject_drafts: RejectDrafts,
        config: WorldConfig,
    ) -> None:
        """Write down what the devices compute for a request, which drafts are wrong, and what it samples.

        The number of computed tokens is vLLM's. It counts all drafts of ``earlier`` steps that haven't come back,
        since vLLM hasn't heard yet which of them the model rejects.
        """
        name = twin.request_id
        drafts = len(self.output.scheduled_spec_decode_tokens.get(name, ()))
        stint = self.stints[name] = Stint(id(twin), twin.num_preemptions, twin.turn)
        unseen = sum(
            step.rejected.get(name, 0)
            for step in earlier
            if isinstance(step, VllmStep) and step.stints.get(name) == stint
        )
        end = twin.num_computed_tokens - unseen
        rejected = reject_drafts(name, drafts) if drafts else 0
        hashes = twin.hashes
        if rejected:
            self.rejected[name] = rejected
            hashes = hashes.copy()
            hashes[end - rejected : end] = twin.wrong_draft_hashes(end - rejected, end)
        if name in self.sampling:
            tokens = twin.future[end - drafts : end - rejected + 1]
            self.tokens[name] = tokens + [0] * (1 + drafts - rejected - len(tokens))
        ahead = {}
        if config.draft_group is not None:
            # It takes the first draft from the step's last right token, and each further one from the one before.
            passes = config.draft_slots - (config.drafter != "model")
            ahead[config.draft_group] = twin.wrong_draft_hashes(end, end - rejected + passes)
        self.attentions.append(Attention(name, end - count, end, tuple(map(tuple, tables)), hashes, ahead=ahead))

    def output_with(self, report: Any) -> ModelRunnerOutput:
        """What a rank's model runner returns: the sampled tokens, and what its connector reports."""
        names = list(self.output.num_scheduled_tokens)
        return ModelRunnerOutput(
            req_ids=names,
            req_id_to_index={name: index for index, name in enumerate(names)},
            sampled_token_ids=[self.tokens.get(name, []) for name in names],
            kv_connector_output=report,
        )
