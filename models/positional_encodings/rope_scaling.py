"""Rotations stretched past the length of training: linear, NTK-aware, dynamic NTK and YaRN.

Equations are those of Peng et al. 2023, "YaRN". D is the number of rotated dimensions, b the base,
theta_i = b^(-2i/D) for i = 0 .. D/2 - 1, s >= 1 the factor by which the trained length L is
stretched. The functions take theta [D/2], and return other frequencies in its place.
"""

import math
from typing import Any

import torch
from torch import Tensor

from models.positional_encodings.base import Places, exact_dtype
from models.positional_encodings.rope import Rotary, inverse_frequencies


def linear_frequencies(theta: Tensor, *, factor: float) -> Tensor:
    """Position interpolation (Chen et al. 2023; equation 10): theta_i / s.

    Position s m then turns as m did.
    """
    return theta / factor


def ntk_frequencies(theta: Tensor, *, factor: float) -> Tensor:
    """NTK-aware scaling (equations 14-16): the base becomes b s^(D/(D-2)).

    theta_0 stays as it is and the last theta is that of position interpolation.
    """
    return theta * torch.pow(factor, _ntk_exponents(theta))


def dynamic_ntk_frequencies(
    theta: Tensor, *, factor: float, trained_length: int, length: int | Tensor
) -> Tensor:
    """NTK-aware scaling with a base b (s l/L - (s - 1))^(D/(D-2)), l = max(length, L).

    (Public code, after emozilla; Peng et al., section 3.3, have l/L, which is s = 1.) Exactly theta
    for length <= L; with length = 2L, say, those of `ntk_frequencies` with factor s + 1. length: an
    int, or integers of any shape [...] on theta's device -> [...,D/2].
    """
    past = (torch.as_tensor(length, device=theta.device) - trained_length).clamp(min=0)
    # s l/L - (s - 1), in a form that is exactly 1 up to the trained length
    growth = 1 + factor * past.to(theta) / trained_length
    return theta * growth[..., None].pow(_ntk_exponents(theta))


def yarn_frequencies(
    theta: Tensor,
    *,
    base: float,
    factor: float,
    trained_length: int,
    beta_fast: float = 32.0,
    beta_slow: float = 1.0,
) -> Tensor:
    """YaRN: theta_i where a pair turns often within L, theta_i / s where it hardly turns.

    In between a blend, by a straight line over the index i, as in the public code: from the pair
    that turns beta_fast times within L (its index rounded down) to the pair that turns beta_slow
    times (rounded up). Equation 18 has a line over the number of turns r = L theta_i / (2 pi)
    between the same ends. r falls exponentially with i, so in between the paper's interpolates
    more. The logits also want `yarn_attention_factor`.
    """
    dim = 2 * len(theta)

    def index_of(turns: float) -> float:
        return dim * math.log(trained_length / (2 * math.pi * turns)) / (2 * math.log(base))

    low = max(math.floor(index_of(beta_fast)), 0)
    # The ramp never falls: where no pair turns even beta_slow times, it is 1 for all but pair 0.
    high = max(min(math.ceil(index_of(beta_slow)), dim - 1), low + 0.001)
    index = torch.arange(len(theta), dtype=theta.dtype, device=theta.device)
    ramp = ((index - low) / (high - low)).clamp(0, 1)  # 0 keeps theta_i, 1 takes theta_i / s
    return theta * (1 - ramp) + theta / factor * ramp


def yarn_attention_factor(factor: float) -> float:
    """0.1 ln s + 1: the factor of the rotated q and of the rotated k, squared in the logits."""
    return 0.1 * math.log(factor) + 1.0


def _ntk_exponents(theta: Tensor) -> Tensor:
    """The exponents of g in (b g^(D/(D-2)))^(-2i/D) = theta_i g^(-2i/(D-2)): 0 to -1 exactly."""
    dim = 2 * len(theta)
    return -torch.arange(0, dim, 2, dtype=theta.dtype, device=theta.device) / max(dim - 2, 1)


class DynamicNtkRotary(Rotary):
    """Rotation by `dynamic_ntk_frequencies` theta(l) of the length l that is attended to.

    A key that was cached rotated by theta(l) would be wrong as soon as l grows. So `rotate` always
    turns by the unscaled theta, and the logits are put right afterwards. Rotations compose:
    R(m theta(l)) = R(m delta) R(m theta) with delta = theta(l) - theta, so the logits lack
    scale (R(i delta) q . R(j delta) k - q . k), of the rotated q and k; zero while l <= L.

    l depends neither on padding, nor on the rest of the batch, nor on whether decoding is
    incremental. In causal attention every query has its own l = i + 1, as in a decoder that caches
    keys unrotated and turns them all anew at each step; queries past L are taken one by one.
    Otherwise every row has its own: the position after its last real key.

    Takes the arguments of `Rotary` except stretch and gain.
    """

    def __init__(self, *, factor: float, trained_length: int, **rotation: Any) -> None:
        super().__init__(**rotation)
        self.factor = factor
        self.trained_length = trained_length

    def logit_term(
        self, q: Tensor, k: Tensor, places: Places, state: Tensor | None
    ) -> Tensor | None:
        lengths = places.once(("lengths", id(self)), lambda: self._lengths(places))
        if lengths is None:
            return None
        exact = exact_dtype(q.dtype)
        # A small difference of products: it would drown in the rounding of a lower precision.
        with torch.autocast(q.device.type, enabled=False):
            term_of = self._by_query if places.causal else self._by_row
            term = term_of(q.to(exact), k.to(exact), places, lengths)
            return self.logit_scale(q.shape[-1], places) * term

    def _lengths(self, places: Places) -> Tensor | None:
        """l by query [Tq] if causal, else by row [B or 1]; None where none is past L."""
        span = places.q_span if places.causal else places.k_span
        if span is not None and span[1] <= self.trained_length:
            return None
        if places.causal:
            lengths = places.q_positions + 1
        elif places.real_keys is not None:  # on the right
            lengths = places.k_positions[places.real_keys[:, 0, 0].sum(-1).clamp(min=1) - 1] + 1
        else:
            lengths = places.k_positions[-1:] + 1
        if span is None and not (lengths > self.trained_length).any():
            return None
        return lengths

    def _delta(self, x: Tensor, length: Tensor) -> Tensor:
        """theta(l) - theta of every length [...], as [..., dim/2]."""
        theta = inverse_frequencies(
            self.rotated_dim(x), base=self.base, dtype=x.dtype, device=x.device
        )
        scaled = dynamic_ntk_frequencies(
            theta, factor=self.factor, trained_length=self.trained_length, length=length
        )
        return self.clip(scaled - theta)

    def _by_row(self, q: Tensor, k: Tensor, places: Places, lengths: Tensor) -> Tensor:
        delta = self._delta(q, lengths)
        turned_q = self.turn(q, places.q_positions, delta)
        turned_k = self.turn(k, places.k_positions, delta)
        return turned_q @ turned_k.mT - q @ k.mT

    def _by_query(self, q: Tensor, k: Tensor, places: Places, lengths: Tensor) -> Tensor:
        if places.q_span is None:
            past = (lengths > self.trained_length).tolist()
        else:
            past = [position >= self.trained_length for position in range(*places.q_span)]
        zeros = q.new_zeros(*q.shape[:2], 1, k.shape[2])
        rows = [zeros] * len(past)
        for i in (i for i, far in enumerate(past) if far):
            # R(i delta) q . R(j delta) k = q . R((j - i) delta) k: only the keys need turning
            steps = places.k_positions - places.q_positions[i]
            turned = self.turn(k, steps, self._delta(k, lengths[i]))
            rows[i] = q[:, :, i, None] @ (turned - k).mT
        return torch.cat(rows, dim=2)
