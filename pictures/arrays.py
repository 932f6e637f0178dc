"""What a position scheme does, as numbers to draw: measured from outside, through the two contracts
of `base.py`.

So every scheme, layout and scaling is drawn as it is used, and none needs a line here. Arrays are
float64.
"""

from __future__ import annotations

from typing import cast

import numpy as np
import torch
from torch import Tensor, nn

from configs.schema import ModelConfig
from models.positional_encodings.base import (
    AttentionPosition,
    InputPosition,
    Kind,
    Places,
    PositionScheme,
    Role,
    Side,
)
from models.schemes import build_scheme


def fresh_scheme(model: ModelConfig, seed: int = 0) -> PositionScheme:
    """The scheme of model.position as a training begins with it; the caller's random state stays as
    it is.
    """
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        return build_scheme(model).eval()


def positions_of(scheme: PositionScheme, side: Side, n: int) -> Tensor:
    """The positions [n] of the tokens 0 .. n-1."""
    return scheme.positions(side, 0, n, torch.device("cpu"))


def token_axis(scheme: PositionScheme, n: int) -> str:
    """What the numbers 0 .. n-1 of tokens are on an axis: their positions, unless the scheme puts
    them elsewhere.
    """
    plain = torch.equal(positions_of(scheme, "source", n), torch.arange(n))
    return "position" if plain else "token (at a drawn position)"


# -------------------------------------------------------------------------- added to the embeddings


@torch.inference_mode()
def input_table(
    scheme: PositionScheme, side: Side, d_model: int, n: int, positions: Tensor | None = None
) -> np.ndarray | None:
    """What is added to the embeddings of n tokens of one side, [n,D]; None where nothing is.

    positions [n]: where they stand (None: where the scheme puts the tokens 0 .. n-1).
    """
    module = scheme.input(side)
    if type(module).forward is InputPosition.forward:
        return None
    zeros = torch.zeros(1, n, d_model, dtype=torch.float64)
    return module(zeros, positions_of(scheme, side, n) if positions is None else positions)[
        0
    ].numpy()


def dot_products(table: np.ndarray) -> np.ndarray:
    """[T,D] -> the products of all pairs of rows, [T,T]."""
    return table @ table.T


def cosines(table: np.ndarray) -> np.ndarray:
    """[T,D] -> the cosines of the angles between all pairs of rows, [T,T]; 0 for a row of zeros."""
    norms = np.linalg.norm(table, axis=1, keepdims=True)
    unit = table / np.where(norms > 0, norms, 1.0)
    return unit @ unit.T


def by_offset(products: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Mean, smallest and largest of products[t, t+k] over all t, for k = 0 .. T-1: three arrays [T]
    from [T,T].
    """
    diagonals = [np.diagonal(products, k) for k in range(len(products))]
    mean, low, high = (
        [reduce(diagonal) for diagonal in diagonals] for reduce in (np.mean, np.min, np.max)
    )
    return np.array(mean), np.array(low), np.array(high)


# ---------------------------------------------------------------------------------------- rotations


@torch.inference_mode()
def rotation(
    module: AttentionPosition,
    positions: Tensor,
    *,
    n_heads: int,
    head_dim: int,
    role: Role = "query",
) -> np.ndarray | None:
    """How each plane of a head turns: complex [H,T,P], magnitude times exp(i angle); None where
    nothing turns.

    Planes are found by trying, so that any layout of pairs will do: dimension a turns into
    dimension b. They are ordered by their first dimension, which is from fast to slow.
    """
    basis = torch.eye(head_dim, dtype=torch.float64)[:, None, None, :].expand(-1, n_heads, 1, -1)
    # One position on from 0: no frequency of a RoPE makes this a whole or half turn.
    images = module.rotate(basis, torch.tensor([1]), role)[:, :, 0].abs().sum(1)  # [from,to]
    elsewhere = images.fill_diagonal_(0)
    partner = elsewhere.argmax(1)
    turns = elsewhere.amax(1) > 0
    first = [a for a in range(head_dim) if turns[a] and a < partner[a]]
    if not first:
        return None
    second = partner[first].tolist()
    x = torch.zeros(1, n_heads, len(positions), head_dim, dtype=torch.float64)
    x[..., first] = 1.0
    turned = module.rotate(x, positions, role)[0]
    return torch.complex(turned[..., first], turned[..., second]).numpy()


@torch.inference_mode()
def equal_vector_logits(
    module: AttentionPosition, n: int, *, n_heads: int, head_dim: int
) -> np.ndarray:
    """q.k of a query of ones at position n-1 and keys of ones at distance k = 0 .. n-1, over Dh:
    [n], of head 1.

    For a rotation by frequencies w_i this is the mean of cos(k w_i). Terms that the scheme adds to
    the logits because of q and k count too; a bias does not.
    """
    positions = torch.arange(n)
    ones = torch.ones(1, n_heads, n, head_dim, dtype=torch.float64)
    q = module.rotate(ones, positions, "query")[:, :, -1:]
    k = module.rotate(ones, positions, "key")
    logits = q @ k.mT
    term = module.logit_term(q, k, Places(positions[-1:], positions, causal=True), None)
    if term is not None:
        logits = logits + term / module.logit_scale(head_dim)
    return logits[0, 0, 0].flip(0).numpy() / head_dim


def decay_bound(turned: np.ndarray) -> np.ndarray:
    """RoFormer's bound (Su et al. 2021, section 3.4.3) by distance k = 0 .. T-1: the mean of |S_j|, [T].

    turned [T,P] holds exp(i k w_0), exp(i k w_1), ...; S_j is the sum of the first j = 1 .. P of them. By Abel's
    summation the product of q and k at distance k is at most P max_i |h_(i+1) - h_i| times this, where h_i is the
    complex product of their planes i, and the last of all is followed by 0.
    """
    return np.abs(np.cumsum(turned, axis=1)).mean(axis=1)


# ------------------------------------------------------------------------------------------- biases


@torch.inference_mode()
def bias_matrices(
    scheme: PositionScheme, kind: Kind, model: ModelConfig, n: int
) -> np.ndarray | None:
    """What positions alone add to the scaled logits of n tokens, [L,H,n,n], NaN where the mask
    forbids; or None.

    L is 1 where all layers share one module, otherwise the number of layers.
    """
    n_layers = model.n_encoder_layers if kind == "encoder" else model.n_decoder_layers
    modules = list(dict.fromkeys(scheme.attention(kind, layer) for layer in range(n_layers)))
    positions = positions_of(scheme, "source" if kind == "encoder" else "target", n)
    causal = kind == "decoder"
    places = Places(
        positions, positions, causal=causal, k_end=None if causal else positions[-1:] + 1
    )
    biases = [module.bias(places) for module in modules]
    if any(bias is None for bias in biases):
        return None
    whole = [cast(Tensor, bias).double().expand(1, model.n_heads, n, n)[0] for bias in biases]
    matrices = torch.stack(whole)
    if places.mask is not None:
        matrices = matrices.masked_fill(~places.mask, float("nan"))
    return matrices.numpy()


def depends_on_content(module: AttentionPosition) -> bool:
    """Whether the module has a term that no picture of positions alone can show."""
    return type(module).logit_term is not AttentionPosition.logit_term or module.needs_weights


# -------------------------------------------------------------------------------------- projections


def random_projections(d_model: int, seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    """W_q and W_k [D,D], Xavier-uniform, from a generator of their own."""
    generator = torch.Generator().manual_seed(seed)
    drawn = [torch.empty(d_model, d_model, dtype=torch.float64) for _ in range(2)]
    w_q, w_k = (nn.init.xavier_uniform_(weight, generator=generator).numpy() for weight in drawn)
    return w_q, w_k


def encoder_projections(encoder: nn.Module) -> tuple[np.ndarray, np.ndarray]:
    """W_q and W_k [D,D] of the first layer of an encoder of either backend; q = W_q x."""
    weights = encoder.state_dict()
    names = ("layers.0.self_attention.qkv_proj.weight", "stack.layers.0.self_attn.in_proj_weight")
    [joint] = [weights[name] for name in names if name in weights]
    w_q, w_k, _ = joint.double().cpu().chunk(3)
    return w_q.numpy(), w_k.numpy()


def projected_products(
    table: np.ndarray, w_q: np.ndarray, w_k: np.ndarray, n_heads: int
) -> np.ndarray:
    """(W_q p_t) . (W_k p_s) within each head, over sqrt(Dh), for all pairs of rows of a table
    [T,D]: [H,T,T].

    What the positions of query and key alone put into a logit. Biases, norms and embeddings are
    left out.
    """
    q, k = (
        np.stack(np.split(table @ weight.T, n_heads, axis=1)) for weight in (w_q, w_k)
    )  # [H,T,Dh]
    return q @ k.transpose(0, 2, 1) / q.shape[-1] ** 0.5


# -------------------------------------------------------------------------------- maps in the plane


def principal_axes(table: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """PCA of [T,D]: the mean row [D], the two directions of the largest variance [2,D], their
    shares of it [2].
    """
    from sklearn.decomposition import PCA

    pca = PCA(n_components=2, svd_solver="full").fit(table)
    return pca.mean_, pca.components_, pca.explained_variance_ratio_


def scaled_map(table: np.ndarray) -> tuple[np.ndarray, float]:
    """Metric MDS of [T,D]: points [T,2] whose distances come close to those of the rows, and the
    normalised stress.

    It begins from classical scaling and has no randomness. The stress (Kruskal's stress-1) is 0 for
    equal distances.
    """
    from sklearn.manifold import MDS
    from sklearn.metrics import pairwise_distances

    wanted = pairwise_distances(table)
    mds = MDS(
        n_components=2,
        n_init=1,
        init="classical_mds",
        normalized_stress=False,
        metric="precomputed",
    )
    points = mds.fit_transform(wanted)
    found = pairwise_distances(points)
    return points, float(np.sqrt(((wanted - found) ** 2).sum() / (wanted**2).sum()))
