"""``Model``: the model that computed the KV.

Another model computes other KV for the same prompt, in blocks of the same shape.

An engine's model is its path, with the revision and the ``hf_overrides`` that the engine was given, or the name
that an operator gives it instead of these; and the type of the numbers in its KV caches. Two engines accept each
other's tickets only if both name the same model. An engine that names its model and one that doesn't refuse each
other's tickets; two engines that name none accept them. A ticket of an older kv-p2p names none, or no revision and
no overrides.
"""

from dataclasses import asdict, dataclass
from typing import Any, Final

from kv_api import VllmConfig
from kv_api.model_variant import variant_of

_AUTO: Final = "auto"
"""The setting with which the KV caches have the type that the model computes with."""
MOST_OF_A_NAME: Final = 100
"""The most characters of a model's name that are logged."""


@dataclass(frozen=True)
class Model:
    """An engine's model, as other engines know it."""

    name: str
    dtype: str
    """The type of the numbers in the KV caches."""
    variant: str = ""
    """What the engine was given beside the path, and what of the model that changes."""

    def __str__(self) -> str:
        variant = f" ({self.variant!r:.{MOST_OF_A_NAME}})" if self.variant else ""
        return f"{self.name!r:.{MOST_OF_A_NAME}}{variant} with KV in {self.dtype!r:.{MOST_OF_A_NAME}}"

    def to_json(self) -> dict[str, Any]:
        """What a ticket has of it. Without a variant it is what it was before there were any."""
        told = asdict(self)
        return told if self.variant else {key: told[key] for key in ("name", "dtype")}


def model_of(vllm_config: VllmConfig, name: str | None) -> Model | None:
    """The model of an engine, called ``name`` if that isn't None. None: the configuration doesn't name a model."""
    model = getattr(vllm_config, "model_config", None)
    variant = "" if name else variant_of(model)
    name = name or getattr(model, "model", None)
    if not name:
        return None
    dtype = getattr(vllm_config.cache_config, "cache_dtype", _AUTO)
    if dtype == _AUTO:
        dtype = getattr(model, "dtype", _AUTO)
    return Model(str(name), str(dtype).removeprefix("torch."), variant)
