"""PoPE, polar positions (Gopalakrishnan et al. 2025): content sets magnitudes, position angles.

Every element c of q and k is a point of the plane. Its magnitude is softplus(.), its angle does not
depend on the content, and the angles of keys have a trained phase delta:

    logit_ts = sum_c softplus(q_tc) softplus(k_sc) cos((s - t) theta_c + delta_c) / sqrt(Dh)

with theta_c = base^(-c/Dh) for c = 0 .. Dh-1. As cosines and sines, q and k are twice as wide.
"""

import math

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from models.positional_encodings.base import AttentionPosition, Role, exact_dtype
from models.positional_encodings.kerple import kept_within
from models.positional_encodings.rope import inverse_frequencies


def polar(x: Tensor, angles: Tensor) -> Tensor:
    """softplus(x) at the given angles: x [B,H,T,Dh], angles broadcast to it -> [B,H,T,2Dh].

    First all cosines, then all sines. Computed in the finer type of both, float32 or better;
    returned in x's type.
    """
    magnitude = F.softplus(x.to(exact_dtype(torch.promote_types(x.dtype, angles.dtype))))
    return torch.cat((magnitude * angles.cos(), magnitude * angles.sin()), dim=-1).to(x.dtype)


class Pope(AttentionPosition):
    """The phases of one layer, delta [H,Dh], clamped to [-2 pi, 0]. They start at 0.

    0 is a bound: training would drive half of them past it at once, and they would stay there
    forever if the clamp gave them no gradient.
    """

    widening = 2

    def __init__(self, *, n_heads: int, head_dim: int, base: float) -> None:
        super().__init__()
        self.base = base
        self.delta = nn.Parameter(torch.zeros(n_heads, head_dim))

    def rotate(self, x: Tensor, positions: Tensor, role: Role) -> Tensor:
        """q or k [B,H,T,Dh] at positions [T] -> [B,H,T,2Dh]."""
        exact, dim = exact_dtype(x.dtype), x.shape[-1]
        theta = inverse_frequencies(2 * dim, base=self.base, dtype=exact, device=x.device)
        angles = positions[:, None] * theta
        if role == "key":
            angles = angles + kept_within(self.delta.to(exact), -2 * math.pi, 0.0)[:, None]
        return polar(x, angles)
