"""Fixed sinusoids added to the embeddings (Vaswani et al. 2017, section 3.5)."""

from typing import Literal

import torch
from torch import Tensor

from models.positional_encodings.base import InputPosition, exact_dtype
from models.positional_encodings.rope import inverse_frequencies

SinusoidLayout = Literal["interleaved", "half", "t2t"]


def sinusoid_table(
    positions: Tensor,
    d_model: int,
    *,
    base: float = 10000.0,
    layout: SinusoidLayout = "interleaved",
    dtype: torch.dtype,
) -> Tensor:
    """The sinusoids of positions [...,T], which may be negative, as [...,T,d_model].

    With w_i = base^(-2i/d_model) for i = 0 .. d_model/2 - 1:

    interleaved (the paper): PE[t, 2i] = sin(t w_i), PE[t, 2i+1] = cos(t w_i).
    half (XLNet; Marian as transformers has it): the same numbers in another order, all sines and
    then all cosines.
    t2t (tensor2tensor, Marian's own program, M2M100): all sines and then all cosines too, but
    w_i = base^(-i/(d_model/2 - 1)), so that the last wavelength is 2 pi base itself.

    Angles are taken in float32 or better whatever `dtype` is: bfloat16 cannot tell position 2047
    from 2048. Raises ValueError for an odd d_model.
    """
    if d_model % 2:
        raise ValueError(f"d_model = {d_model} must be even")
    exact = exact_dtype(dtype)
    if layout == "t2t":
        steps = torch.arange(d_model // 2, device=positions.device, dtype=exact)
        frequencies = torch.pow(base, steps / -max(d_model // 2 - 1, 1))
    else:
        frequencies = inverse_frequencies(d_model, base=base, dtype=exact, device=positions.device)
    angles = positions.to(exact)[..., None] * frequencies
    if layout == "interleaved":
        return torch.stack((angles.sin(), angles.cos()), dim=-1).flatten(-2).to(dtype)
    return torch.cat((angles.sin(), angles.cos()), dim=-1).to(dtype)


class SinusoidalInput(InputPosition):
    """Adds the sinusoids of the given positions: computed, so there is no table to outgrow."""

    def __init__(self, *, base: float, layout: SinusoidLayout = "interleaved") -> None:
        super().__init__()
        self.base = base
        self.layout: SinusoidLayout = layout

    def forward(self, x: Tensor, positions: Tensor) -> Tensor:
        d_model = x.shape[-1]
        return x + sinusoid_table(
            positions, d_model, base=self.base, layout=self.layout, dtype=x.dtype
        )
