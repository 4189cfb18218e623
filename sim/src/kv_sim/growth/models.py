"""Models whose requests are tried: their KV cache groups, and what a connector must claim to meet them."""

from collections.abc import Mapping
from types import MappingProxyType
from typing import Final, NamedTuple

from kv_sim.config import STATE, GroupConfig
from kv_sim.subject import Subject, Trait

_WINDOW: Final = GroupConfig("sliding", 30)
"""A window of some blocks, and of fewer tokens than a step of a prompt computes."""


class Model(NamedTuple):
    """The KV cache groups of a model, and what a connector has to claim for it."""

    groups: tuple[GroupConfig, ...]
    needs: frozenset[Trait] = frozenset()
    hands_over_states: bool = False


MODELS: Final[Mapping[str, Model]] = MappingProxyType(
    {
        "full attention": Model((GroupConfig(),)),
        "full attention and a window": Model((GroupConfig(), _WINDOW), frozenset({Trait.GROUPS})),
        "full attention and states": Model(
            (GroupConfig(), STATE), frozenset({Trait.GROUPS, Trait.STATES}), hands_over_states=True
        ),
    }
)


def models_for(subject: Subject) -> dict[str, Model]:
    """The models that a connector claims to work with."""
    return {name: model for name, model in MODELS.items() if model.needs <= subject.traits}
