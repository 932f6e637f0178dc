"""ALiBi: a penalty proportional to the distance, with one fixed slope for each head.

Press et al. 2022, "Train Short, Test Long: Attention with Linear Biases", section 3.
"""

import torch
from torch import Tensor

from models.positional_encodings.base import AttentionPosition, Places, exact_dtype


def alibi_slopes(n_heads: int, *, dtype: torch.dtype = torch.float32) -> Tensor:
    """The slopes [H], computed in float64: 2^(-8h/H) for h = 1..H where H is a power of two.

    Otherwise (as in the authors' code) those of the next smaller power of two P, then every other
    one of those of 2P, beginning with the first.
    """
    return torch.tensor(_exponents(n_heads), dtype=torch.float64).exp2().to(dtype)


def _exponents(n_heads: int) -> list[float]:
    """The base-2 logarithms of the slopes, which bfloat16 holds exactly up to 384 heads."""
    power = 1 << (n_heads.bit_length() - 1)
    exponents = [-8 * h / power for h in range(1, power + 1)]
    between = [-8 * h / (2 * power) for h in range(1, 2 * power, 2)]
    return (exponents + between)[:n_heads]


def alibi_bias(distance: Tensor, slopes: Tensor, *, causal: bool, asymmetry: float = 0.0) -> Tensor:
    """-slope |distance|, to be added to the logits after the division by sqrt(Dh).

    distance i - j [...], slopes [H] -> [H,...] in the slopes' type, float32 or better.

    This is symmetric: by it alone an encoder cannot tell left from right. So asymmetry * slope is
    added for every key in the past (distance > 0); 0.5 is the value in the code of Ruoss et al.
    2023. With causal=True the mask tells the sides apart already, and nothing is added.
    """
    dtype = exact_dtype(slopes.dtype)
    closeness = distance.abs().neg().to(dtype)
    if asymmetry and not causal:
        closeness = closeness + asymmetry * (distance > 0).to(dtype)
    return slopes.to(dtype).view(-1, *[1] * distance.dim()) * closeness


class Alibi(AttentionPosition):
    """Symmetric in an encoder unless asymmetry > 0; towards the past alone behind a causal mask."""

    def __init__(self, *, n_heads: int, asymmetry: float = 0.0) -> None:
        super().__init__()
        self.asymmetry = asymmetry
        self.register_buffer("exponents", torch.tensor(_exponents(n_heads)), persistent=False)
        self.exponents: Tensor

    def bias(self, places: Places) -> Tensor:
        slopes = self.exponents.double().exp2().to(exact_dtype(self.exponents.dtype))
        return alibi_bias(places.distance, slopes, causal=places.causal, asymmetry=self.asymmetry)
