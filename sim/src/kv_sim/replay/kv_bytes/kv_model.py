"""How many bytes of KV cache a token takes, as a sum that can be checked."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

DTYPES: Final[Mapping[str, int]] = {"bf16": 2, "fp16": 2, "fp8": 1, "int8": 1}


@dataclass(frozen=True)
class KVModel:
    """The attention of a model, as in its configuration file."""

    layers: int
    heads: int
    """KV heads, not query heads."""
    head_size: int
    tensors: int = 2
    """2: K and V. 1: a latent vector in their place (MLA)."""

    def bytes_per_token(self, dtype: str) -> int:
        """KV bytes of one token, over all layers and workers."""
        return self.layers * self.tensors * self.heads * self.head_size * DTYPES[dtype]

    def sum_shown(self, dtype: str) -> str:
        """The sum, in words."""
        each = "K and V" if self.tensors == 2 else "latent"
        size = self.bytes_per_token(dtype)
        return (
            f"{self.layers} layers × {self.tensors} ({each}) × {self.heads} KV heads × {self.head_size} "
            f"× {DTYPES[dtype]} bytes ({dtype}) = {size:,} bytes a token"
        )
