"""FoPE, Fourier positions: each pair of RoPE turns by a sum of waves, and slow pairs rest.

Hua et al. 2025, "Fourier Position Embedding: Enhancing Attention's Periodic Extension for Length
Generalization", section 4; what the paper leaves open is as in its authors' program.
"""

import math

import torch
import torch.nn.functional as F
from torch import Tensor

from models.positional_encodings.base import AttentionPosition, Heads, Places, Role, exact_dtype
from models.positional_encodings.rope import inverse_frequencies, matrices, turned


class Fourier(AttentionPosition):
    """Pair m of q and k at position n, as a complex number, is multiplied by

        e^(i theta_m n) + sum_l (a_lm cos(theta_l n) + i b_lm sin(theta_l n)),

    where both m and l are among the W pairs that turn once or more in trained_length tokens. The
    others are left as they are. a and b [H,W,W] are drawn once by Xavier's rule, with the gain
    sigma, and are not trained. They enter no checkpoint: the generator's seed gives them again.
    """

    others: Tensor  # a and b, [2,H,W,W]

    def __init__(
        self,
        *,
        n_heads: int,
        head_dim: int,
        base: float,
        trained_length: int,
        sigma: float,
        generator: torch.Generator,
    ) -> None:
        super().__init__()
        self.base = base
        theta = inverse_frequencies(head_dim, base=base, dtype=torch.float64)
        n_waves = int((theta >= 2 * math.pi / trained_length).sum())
        size = 2, n_heads, n_waves, n_waves
        drawn = torch.randn(size, generator=generator, dtype=torch.float64, device="cpu")
        # As nn.init.xavier_normal_ does for [H,W,W].
        spread = sigma * math.sqrt(2 / (n_waves * (n_waves + n_heads)))
        self.register_buffer("others", (spread * drawn).float(), persistent=False)

    def factors(self, x: Tensor, positions: Tensor) -> Tensor:
        """What turns x [B,H,T,Dh] at positions [T]: a matrix for each pair, [H,T,Dh/2,2,2]."""
        n_waves, n_pairs = self.others.shape[-1], x.shape[3] // 2
        exact = exact_dtype(x.dtype)
        theta = inverse_frequencies(x.shape[3], base=self.base, dtype=exact, device=x.device)
        angles = positions[:, None] * theta[:n_waves]
        cos, sin, (a, b) = angles.cos(), angles.sin(), self.others.to(exact)
        with torch.autocast(x.device.type, enabled=False):
            cos, sin = cos + cos @ a, sin + sin @ b
        rest = 0, n_pairs - n_waves
        return matrices(F.pad(cos, rest, value=1.0), F.pad(sin, rest))

    def rotate(self, x: Tensor, positions: Tensor, role: Role) -> Tensor:
        return turned(x, self.factors(x, positions), "interleaved")

    def rotate_heads(self, qkv: Tensor, places: Places, state: Tensor | None = None) -> Heads:
        q, k, v = (x.transpose(1, 2) for x in qkv.unbind(2))
        by = self.factors(q, places.q_positions)
        return turned(q, by, "interleaved"), turned(k, by, "interleaved"), v
