"""Search without a choice among prefixes: each step takes the likeliest token or draws one."""

from collections.abc import Callable, Sequence

import numpy as np
import torch
from torch import Tensor

from configs.schema import Sampling
from models.decoding.hypothesis import (
    Hypothesis,
    Limits,
    allowed_log_probs,
    best_tokens,
    length_penalty,
    never_generated,
    steps_between_looks,
)
from models.decoding.protocol import SearchModel
from models.linear import weights_fixed

# log_probs [B',K,V] of the sentences `alive` [B'] at a step (from 0) -> the tokens that are taken
# and their log-probabilities, [B',K] each.
Choose = Callable[[Tensor, Tensor, int], tuple[Tensor, Tensor]]

_NUCLEUS = 128  # tokens that are sorted first


def greedy_search(model: SearchModel, src: Tensor, limits: Limits) -> list[list[Hypothesis]]:
    """src [B,S] -> one hypothesis for each sentence, as beam search returns with one beam."""

    def choose(log_probs: Tensor, alive: Tensor, step: int) -> tuple[Tensor, Tensor]:
        best, tokens = best_tokens(log_probs, 1)
        return tokens.squeeze(-1), best.squeeze(-1)

    return _search(model, src, limits, 1, choose)


def sample_search(
    model: SearchModel,
    src: Tensor,
    limits: Limits,
    sampling: Sampling,
    *,
    n_samples: int,
    numbers: Sequence[int],
) -> list[list[Hypothesis]]:
    """src [B,S] -> for each sentence n_samples independent translations, best score first.

    Some may be equal. log_prob is the model's own, without temperature and truncation. The draws
    depend on the seed, the sentence's number in `numbers`, n_samples, the sample and the step, and
    not on the rest of the batch.
    """
    shape = (int(limits.max_lengths(src, model.pad_id).max()), n_samples)
    draws = np.stack(
        [np.random.default_rng((sampling.seed, number)).random(shape) for number in numbers]
    )
    uniform = torch.from_numpy(draws).to(src.device)  # [B,T,K]

    def choose(log_probs: Tensor, alive: Tensor, step: int) -> tuple[Tensor, Tensor]:
        probs, ids = truncated(log_probs, sampling)
        tokens = ids.gather(-1, draw(probs, uniform[alive, step])[..., None])
        return tokens.squeeze(-1), log_probs.gather(-1, tokens).squeeze(-1)

    found = _search(model, src, limits, n_samples, choose)
    return [sorted(samples, key=lambda h: -h.score) for samples in found]


@torch.inference_mode()
@weights_fixed()
def _search(
    model: SearchModel, src: Tensor, limits: Limits, n: int, choose: Choose
) -> list[list[Hypothesis]]:
    """n independent hypotheses of each sentence, each until it ends or reaches its limit."""
    device, batch, eos_id = src.device, src.shape[0], limits.eos_id
    max_lengths = limits.max_lengths(src, model.pad_id)
    never = never_generated(pad_id=model.pad_id, bos_id=limits.bos_id, eos_id=eos_id)
    ruled_out = torch.tensor(never, dtype=torch.long, device=device)
    looks = steps_between_looks(device)
    longest = int(max_lengths.max())
    state = model.init_state(model.encode(src), beam_size=n, max_len=longest)

    ids = torch.full((batch, n, longest), eos_id, device=device)
    log_prob = torch.zeros(batch, n, dtype=torch.float64, device=device)
    alive = torch.arange(batch, device=device)  # sentence behind each row of the state
    # of these sentences: the updated ids and log_prob, and the length limits
    new_ids, total, room = ids.clone(), log_prob.clone(), max_lengths[:, None]
    shortest = int(max_lengths.min())
    ended = torch.zeros(batch, n, dtype=torch.bool, device=device)
    tokens = torch.full((batch, n), limits.bos_id, device=device)
    for step in range(longest):
        log_probs = allowed_log_probs(model.decode_step(tokens, state), ruled_out)
        tokens, token_log_probs = choose(log_probs, alive, step)
        tokens = tokens.masked_fill(ended, eos_id)
        total += token_log_probs.masked_fill(ended, 0.0)
        new_ids[:, :, step] = tokens
        ended = tokens == eos_id
        if step + 1 >= shortest:
            ended |= step + 1 >= room
        if step + 1 < longest and ((step + 1) % looks or not ended.any()):
            continue
        keep = (~ended).any(dim=1).nonzero().squeeze(1)
        if len(keep) < len(alive):
            ids[alive], log_prob[alive] = new_ids, total
            if len(keep) == 0:
                break
            state.select(keep)
            alive, ended, tokens = alive[keep], ended[keep], tokens[keep]
            new_ids, total, room = new_ids[keep], total[keep], room[keep]

    n_ids = (ids != eos_id).sum(dim=-1)  # EOS stands at the end alone
    finished = n_ids < max_lengths[:, None]
    scores = log_prob / length_penalty((n_ids + finished).double(), limits.alpha)
    rows = zip(*(x.tolist() for x in (ids, n_ids, log_prob, scores, finished)))
    return [
        [Hypothesis(tuple(i[:n]), total, score, done) for i, n, total, score, done in zip(*row)]
        for row in rows
    ]


def truncated(log_probs: Tensor, sampling: Sampling) -> tuple[Tensor, Tensor]:
    """log_probs [...,V] -> the probabilities to draw from and their tokens' ids, [...,N] each.

    p ~ exp(log_prob / temperature). top_k keeps the most probable tokens (Fan et al. 2018). Of
    these, top_p keeps the nucleus: the fewest tokens, from the most probable down, whose
    probability is at least top_p (Holtzman et al. 2020, section 3.1). Each time the rest gets 0 and
    the kept tokens are normalised. In float64.
    """
    top_k, top_p = sampling.top_k, sampling.top_p
    if top_k is None:
        ids = torch.arange(log_probs.shape[-1], device=log_probs.device).expand(log_probs.shape)
    else:
        log_probs, ids = log_probs.topk(min(top_k, log_probs.shape[-1]), dim=-1)
    probs = (log_probs.double() / sampling.temperature).softmax(dim=-1)
    if top_p is not None:
        order = _likeliest(probs, top_p)
        probs, ids = probs.gather(-1, order), ids.gather(-1, order)
        before = probs.cumsum(dim=-1) - probs
        probs = probs.masked_fill(before >= top_p, 0.0)
        probs = probs / probs.sum(dim=-1, keepdim=True)
    return probs, ids


def _likeliest(probs: Tensor, top_p: float) -> Tensor:
    """Places [...,n] of the most probable, the first of equal ones first: the nucleus and more."""
    n, size = _NUCLEUS, probs.shape[-1]
    while 4 * n <= size and top_p < 1 and not probs.is_cuda:  # a GPU would be waited for
        some, places = probs.topk(n, dim=-1)
        # Whether one of those that equal the last is in the nucleus, topk alone cannot say.
        if (some.masked_fill(some == some[..., -1:], 0.0).sum(dim=-1) >= top_p).all():
            places = places.sort(dim=-1).values
            order = probs.gather(-1, places).sort(dim=-1, descending=True, stable=True).indices
            return places.gather(-1, order)
        n *= 8
    return probs.sort(dim=-1, descending=True, stable=True).indices


def draw(probs: Tensor, uniform: Tensor) -> Tensor:
    """Indices [...] by the inverse of the distribution function, for uniform [...] in [0, 1).

    Of probs [...,N], in any order, index i is drawn where p_0 + ... + p_(i-1) <= u < p_0 + ... +
    p_i: what has no probability is never drawn.
    """
    cumulative, last = probs.cumsum(dim=-1), probs.shape[-1] - 1
    total = cumulative[..., -1:]  # 1 but for rounding
    below = torch.nextafter(total, torch.zeros_like(total))
    place = torch.minimum(uniform[..., None] * total, below)
    return torch.searchsorted(cumulative, place, right=True)[..., 0].clamp(max=last)  # NaN: N
