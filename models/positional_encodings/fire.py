"""FIRE, functional interpolation (Li et al. 2023): a small network of the interpolated distance.

    bias_ij = MLP(psi(i - j) / psi(max(L, i))),    psi(x) = ln(|c x| + 1),    c and L trained

The network's input stays between 0 and 1 at any length. The paper has causal models. Here a key may
also come after its query: psi(|i - j|) / psi(max(L, i, j)) is the paper's formula wherever a causal
mask allows attention, and stays within 1 everywhere else. Only positions enter, never the length of
a sequence, so that padding changes nothing.
"""

import torch
from torch import Tensor, nn

from models.positional_encodings.base import AttentionPosition, Places, exact_dtype

LEAST_C = 1e-6  # psi is the zero function at c = 0, and the ratio undefined


def fire_ratio(q_positions: Tensor, k_positions: Tensor, c: Tensor, threshold: Tensor) -> Tensor:
    """psi(|i - j|) / psi(max(|threshold|, i, j)), between 0 and 1, in float32 or better.

    Positions [Tq] and [Tk], integers from 0 on; c and threshold scalars -> [Tq,Tk].
    """
    dtype = exact_dtype(c.dtype)
    q, k = q_positions.to(dtype)[:, None], k_positions.to(dtype)[None, :]
    scale = c.to(dtype).abs().clamp(min=LEAST_C)
    # Where the distance is not 0, the later position is at least 1: the clamp only guards 0 / 0.
    later = torch.maximum(torch.maximum(q, k), threshold.to(dtype).abs()).clamp(min=1)
    return torch.log1p(scale * (q - k).abs()) / torch.log1p(scale * later)


def fire_bias(
    q_positions: Tensor,
    k_positions: Tensor,
    c: Tensor,
    threshold: Tensor,
    w1: Tensor,
    b1: Tensor,
    w2: Tensor,
    b2: Tensor,
) -> Tensor:
    """w2 relu(w1 ratio + b1) + b2 of `fire_ratio`, in float32 or better also under autocast.

    w1 [W,1], b1 [W], w2 [H,W], b2 [H], the others as there -> [H,Tq,Tk].
    """
    with torch.autocast(device_type=q_positions.device.type, enabled=False):
        ratio = fire_ratio(q_positions, k_positions, c, threshold)
        w1, b1, w2, b2 = (weight.to(ratio.dtype) for weight in (w1, b1, w2, b2))
        hidden = torch.addcmul(b1[:, None], w1, ratio.view(1, -1)).relu()  # [W, Tq Tk]
        return torch.addmm(b2[:, None], w2, hidden).unflatten(1, ratio.shape)


class Fire(AttentionPosition):
    """c, L and a network 1 -> width -> H, evaluated for every pair.

    L is threshold times a trained factor, since an optimizer's steps are small.
    """

    def __init__(
        self, *, n_heads: int, width: int = 32, c: float = 0.1, threshold: float = 512.0
    ) -> None:
        super().__init__()
        self.threshold = threshold
        self.c = nn.Parameter(torch.tensor(float(c)))
        self.threshold_factor = nn.Parameter(torch.tensor(1.0))
        self.hidden = nn.Linear(1, width)
        self.out = nn.Linear(width, n_heads)

    def bias(self, places: Places) -> Tensor:
        threshold = self.threshold * self.threshold_factor
        weights = self.hidden.weight, self.hidden.bias, self.out.weight, self.out.bias
        return fire_bias(places.q_positions, places.k_positions, self.c, threshold, *weights)
