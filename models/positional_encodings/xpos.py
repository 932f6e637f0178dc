"""xPos (Sun et al. 2022): rotation, and a decay with distance for each pair."""

import torch
from torch import Tensor

from models.positional_encodings.base import Role, exact_dtype
from models.positional_encodings.rope import Form, Rotary


def xpos_scale(
    positions: Tensor,
    head_dim: int,
    *,
    gamma: float = 0.4,
    scale_base: float = 512.0,
    dtype: torch.dtype,
) -> Tensor:
    """zeta_i^(m / scale_base) with zeta_i = (2i/head_dim + gamma) / (1 + gamma), [T, head_dim/2].

    The query at m of positions [T] is multiplied by it, the key at n by zeta_i^(-n / scale_base):
    pair i of their product by zeta_i^((m-n) / scale_base). Computed in float32 or better.
    """
    exact = exact_dtype(dtype)
    share = torch.arange(0, head_dim, 2, dtype=exact, device=positions.device) / head_dim
    zeta = (share + gamma) / (1 + gamma)
    return torch.pow(zeta, positions.to(exact)[:, None] / scale_base).to(dtype)


class XPos(Rotary):
    """Turns q and k as RoPE does, and multiplies q by zeta^(m/S) and k by zeta^(-n/S).

    For causal attention only: zeta < 1, so zeta^((m-n)/S) decays with the distance to a key in the
    past (m > n), but grows without bound towards one in the future.

    The powers are always centred at position 0. Any centre cancels in q.k, but only while q and k
    share it; cached keys cannot follow a centre that moves with the length, as in some public code.
    The price is range: with the defaults the key's factor leaves float16 past position 4,500 and
    float32 past 36,000.
    """

    def __init__(self, *, base: float, gamma: float, scale_base: float, form: Form) -> None:
        super().__init__(base=base, form=form, rope_dim="head")
        self.gamma = gamma
        self.scale_base = scale_base

    def magnitude(self, x: Tensor, positions: Tensor, role: Role) -> Tensor:
        # The key's factor is the query's of the mirrored position: 1/zeta^(n/S) = zeta^(-n/S).
        signed = positions if role == "query" else -positions
        bases = {"gamma": self.gamma, "scale_base": self.scale_base}
        return xpos_scale(signed, x.shape[3], **bases, dtype=exact_dtype(x.dtype))
