"""RePo, context re-positioning (Li et al. 2025): a small network gives each token its position.

    r_t = silu(W_g x_t) * (W_c x_t)        z_t = W_z r_t, one number for each head

and q_t and k_t turn by z_t theta, as they turn by t theta in RoPE. A token's z does not depend on
where it stands: the layers below, which have plain positions, supply that.
"""

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from models.positional_encodings.base import exact_dtype
from models.positional_encodings.selective import TurnedByState


class Repositioned(TurnedByState):
    """The network of one layer: W_g and W_c [width,d], W_z [H,width]."""

    def __init__(self, *, d_model: int, n_heads: int, base: float, width: int) -> None:
        super().__init__(base=base)
        self.gate = nn.Linear(d_model, width, bias=False)
        self.content = nn.Linear(d_model, width, bias=False)
        self.place = nn.Linear(width, n_heads, bias=False)

    def token_state(self, x: Tensor, last: Tensor | float = 0.0) -> Tensor:
        """x [B,T,d_model] -> z [B,H,T,1], in float32 or better also under autocast."""
        exact = exact_dtype(x.dtype)
        layers = self.gate, self.content, self.place
        gate, content, place = (layer.weight.to(exact) for layer in layers)
        with torch.autocast(x.device.type, enabled=False):
            x = x.to(exact)
            z = F.linear(F.silu(F.linear(x, gate)) * F.linear(x, content), place)
        return z.transpose(1, 2)[..., None]
