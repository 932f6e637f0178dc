"""Muon: orthogonal steps for the linear maps inside the layers, AdamW for every other weight."""

from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.optim import AdamW, Optimizer

from models.attention.multi_head import CrossAttention, SelfAttention
from models.transformer_backend import FeedForward

MOMENTUM = 0.95
_STEPS = 5
_A, _B, _C = 3.4445, -4.7750, 2.0315  # of the polynomial in `orthogonalise`


class HiddenMap(NamedTuple):
    """A weight [n*O,I], in which n linear maps [O,I] are stacked."""

    weight: nn.Parameter
    n: int


def hidden_maps(model: nn.Module) -> list[HiddenMap]:
    """The maps of all attentions and feed-forward branches; no embedding, output or position."""
    found: list[tuple[Tensor, int]] = []
    for module in model.modules():
        match module:
            case SelfAttention():
                found += [(module.qkv_proj.weight, 3), (module.out_proj.weight, 1)]
            case CrossAttention():
                found += [
                    (module.q_proj.weight, 1),
                    (module.kv_proj.weight, 2),
                    (module.out_proj.weight, 1),
                ]
            case nn.MultiheadAttention():
                found += [(module.in_proj_weight, 3), (module.out_proj.weight, 1)]
            case FeedForward() | nn.TransformerEncoderLayer() | nn.TransformerDecoderLayer():
                maps = module.linear1.out_features // module.linear2.in_features
                found += [(module.linear1.weight, maps), (module.linear2.weight, 1)]
    return [HiddenMap(weight, n) for weight, n in found if isinstance(weight, nn.Parameter)]


def orthogonalise(x: Tensor, dtype: torch.dtype) -> Tensor:
    """x [N,O,I], N matrices U S V^T -> about U V^T of each, in dtype: singular values near 1.

    That holds where those of S are not tiny. Five times aX + b(XX^T)X + c(XX^T)^2 X, a polynomial
    of the singular values alone (Jordan et al. 2024, "Muon: An optimizer for hidden layers in
    neural networks").
    """
    upright = x.shape[-2] > x.shape[-1]
    x = x.mT.contiguous() if upright else x  # XX^T of the shorter side
    x = (x / x.norm(dim=(-2, -1), keepdim=True).clamp(min=1e-7)).to(dtype)
    for _ in range(_STEPS):
        gram = x @ x.mT
        x = torch.baddbmm(x, torch.baddbmm(gram, gram, gram, beta=_B, alpha=_C), x, beta=_A)
    return x.mT if upright else x


class Muon(Optimizer):
    """W -= lr * (0.2 sqrt(max(O, I)) orthogonalise(M) + weight_decay * W), for `maps` alone.

    M is Nesterov's momentum. The factor makes steps as large as AdamW's, so that one rate serves
    both (Liu et al. 2025, "Muon is Scalable for LLM Training"; torch's `match_rms_adamw`). AdamW
    has the other `groups`, with `betas` and `eps`. Equal shapes are orthogonalised in one product:
    with `bf16` in bfloat16, as Jordan's, else in the weights' dtype. torch.optim.Muon differs in
    three things: it always computes in bfloat16, goes matrix by matrix, and takes queries, keys and
    values in one weight as one map.
    """

    def __init__(
        self,
        maps: Sequence[HiddenMap],
        groups: Iterable[dict[str, Any]],
        *,
        lr: float,
        betas: tuple[float, float],
        eps: float,
        weight_decay: float,
        bf16: bool = False,
    ) -> None:
        self._n_maps = [n for _, n in maps]
        self._dtype = torch.bfloat16 if bf16 else maps[0].weight.dtype
        self._adamw = AdamW(
            groups, lr=lr, betas=betas, eps=eps, weight_decay=weight_decay, fused=True
        )
        own = {"params": [weight for weight, _ in maps]}
        super().__init__([*self._adamw.param_groups, own], {"lr": lr, "weight_decay": weight_decay})

    @torch.no_grad()
    def step(self, closure: Callable[[], float] | None = None) -> None:  # type: ignore[override]
        """One update by the present gradients; closures are not supported."""
        # Loading a state replaces both.
        self._adamw.param_groups, self._adamw.state = self.param_groups[:-1], self.state
        self._adamw.step()
        group = self.param_groups[-1]
        alike: dict[torch.Size, list[tuple[Tensor, Tensor]]] = defaultdict(list)
        own = [(w, n) for w, n in zip(group["params"], self._n_maps) if w.grad is not None]
        for weight, _ in own:
            if not self.state[weight]:
                self.state[weight]["momentum"] = torch.zeros_like(weight)
        if not own:
            return
        grads, momenta = [w.grad for w, _ in own], [self.state[w]["momentum"] for w, _ in own]
        torch._foreach_lerp_(momenta, grads, 1 - MOMENTUM)
        for (weight, n), ahead in zip(own, torch._foreach_lerp(grads, momenta, MOMENTUM)):
            for one, direction in zip(weight.chunk(n), ahead.chunk(n)):
                alike[one.shape].append((one, direction))
        for shape, pairs in alike.items():
            ones, directions = zip(*pairs)
            steps = orthogonalise(torch.stack(directions), self._dtype)
            steps = steps.to(ones[0].dtype).contiguous()  # for foreach
            if group["weight_decay"]:
                torch._foreach_mul_(ones, 1 - group["lr"] * group["weight_decay"])
            torch._foreach_add_(ones, steps.unbind(), alpha=-group["lr"] * 0.2 * max(shape) ** 0.5)
