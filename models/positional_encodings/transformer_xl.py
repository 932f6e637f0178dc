"""Transformer-XL: sinusoids of the distance inside the logits (Dai et al. 2019, section 3.3).

Bidirectional as in XLNet (Yang et al. 2019). With i a query's position, j a key's, and R_t the
sinusoids of the integer t, which may be negative (sines in the first half, cosines in the second):

    logits_ij = [(q_i + u) . k_j + (q_i + v) . W_kR R_(i-j)] / sqrt(Dh)

R is projected once for each distance that occurs, and the products are gathered by distance. This
replaces the papers' "relative shift" and holds for any positions.
"""

import torch
from torch import Tensor, nn

from models.positional_encodings.base import AttentionPosition, Places
from models.positional_encodings.sinusoidal import sinusoid_table


def relative_sinusoids(
    q_positions: Tensor,
    k_positions: Tensor,
    d_model: int,
    *,
    base: float = 10000.0,
    dtype: torch.dtype,
) -> tuple[Tensor, Tensor]:
    """R_t of every distance i - j that occurs, and each pair's index into them.

    Integers [Tq] and [Tk] -> (R [N,d_model], index [Tq,Tk]) with R[index[i,j]] = R_(i-j).
    """
    distances, index = Places(q_positions, k_positions).distances()
    return sinusoid_table(distances, d_model, base=base, layout="half", dtype=dtype), index


def xl_content_logits(k: Tensor, u: Tensor) -> Tensor:
    """The term of the key alone: u . k / sqrt(Dh). k [B,H,Tk,Dh], u [H,Dh] -> [B,H,1,Tk]."""
    return torch.matmul(u[:, None], k.mT) * k.shape[-1] ** -0.5


def xl_position_logits(q: Tensor, v: Tensor, projected: Tensor, index: Tensor) -> Tensor:
    """The term of the distance: (q + v) . (W_kR R) / sqrt(Dh).

    q [B,H,Tq,Dh], v [H,Dh], projected [N,H,Dh] = W_kR R split into heads, index [Tq,Tk] into its
    rows (see `relative_sinusoids`) -> [B,H,Tq,Tk].
    """
    products = torch.einsum("bhqd,nhd->bhqn", q + v[:, None], projected)
    return products.gather(-1, index.expand(*q.shape[:-1], -1)) * q.shape[-1] ** -0.5


def xl_logits(
    q: Tensor,
    k: Tensor,
    u: Tensor,
    v: Tensor,
    w_kr: Tensor,
    q_positions: Tensor,
    k_positions: Tensor,
    *,
    base: float = 10000.0,
) -> Tensor:
    """The whole logits, content and position: the formula at the head of this file.

    q [B,H,Tq,Dh], k [B,H,Tk,Dh]; u, v [H,Dh]; w_kr [H Dh, d_model], applied as w_kr @ R; integer
    positions [Tq] and [Tk] -> [B,H,Tq,Tk].
    """
    table, index = relative_sinusoids(
        q_positions, k_positions, w_kr.shape[1], base=base, dtype=w_kr.dtype
    )
    projected = torch.matmul(table, w_kr.T).unflatten(-1, u.shape)
    content = torch.matmul(q, k.transpose(-2, -1)) * q.shape[-1] ** -0.5
    return content + xl_content_logits(k, u) + xl_position_logits(q, v, projected, index)


class HeadBiases(nn.Module):
    """u and v [H,Dh], which take the query's place in terms without one; start normal(0, 0.02)."""

    def __init__(self, *, n_heads: int, head_dim: int) -> None:
        super().__init__()
        self.u = nn.Parameter(0.02 * torch.randn(n_heads, head_dim))
        self.v = nn.Parameter(0.02 * torch.randn(n_heads, head_dim))


class TransformerXl(AttentionPosition):
    """One layer: its own W_kR, Xavier-uniform, and u and v of its own or `shared` ones."""

    def __init__(
        self, *, d_model: int, n_heads: int, base: float = 10000.0, shared: HeadBiases | None = None
    ) -> None:
        super().__init__()
        self.d_model = d_model
        self.head_shape = (n_heads, d_model // n_heads)
        self.base = base
        self.w_kr = nn.Linear(d_model, d_model, bias=False)
        nn.init.xavier_uniform_(self.w_kr.weight)
        if shared is None:
            self.own_biases = HeadBiases(n_heads=n_heads, head_dim=d_model // n_heads)
        # A tuple hides the module from the registry: its owner saves it, once.
        self._biases = (shared,)

    @property
    def biases(self) -> HeadBiases:
        return self._biases[0] or self.own_biases

    def logit_term(self, q: Tensor, k: Tensor, places: Places, state: Tensor | None) -> Tensor:
        distances, index = places.distances()
        if places.newest and places.q_span and places.k_span == (0, len(distances)):
            # A step of a search sees the distances of the step before, 0, 1, ..., and one more.
            projected = places.kept.get(id(self))
            if projected is None or len(projected) < len(distances):
                more = torch.arange(max(16, 2 * len(distances)), device=distances.device)
                projected = places.kept[id(self)] = self._project(places, more)
            projected = projected[: len(distances)]
        else:
            projected = self._project(places, distances)
        u, v = self.biases.u, self.biases.v
        return xl_content_logits(k, u) + xl_position_logits(q, v, projected, index)

    def _project(self, places: Places, distances: Tensor) -> Tensor:
        """W_kR R of distances [N] -> [N,H,Dh]."""
        dtype = self.w_kr.weight.dtype
        table = places.once(
            ("transformer_xl", self.d_model, self.base, dtype),
            lambda: sinusoid_table(
                distances, self.d_model, base=self.base, layout="half", dtype=dtype
            ),
        )
        return self.w_kr(table).unflatten(-1, self.head_shape)
