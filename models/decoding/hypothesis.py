"""What every search takes and returns: limits, log-probabilities and hypotheses."""

from dataclasses import dataclass

import torch
from torch import Tensor

_WIDTH = 100  # tokens in a part of the vocabulary, see `best_tokens`
# With fewer log-probabilities than this, a search in parts costs more than it saves.
_MANY = 65_536


@dataclass(frozen=True, slots=True)
class Hypothesis:
    """One translation as target ids without start id and without EOS.

    log_prob is the sum over its tokens (EOS included where finished), score is log_prob over the
    length penalty. finished=False: cut off at the length limit.
    """

    ids: tuple[int, ...]
    log_prob: float
    score: float
    finished: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """Where translations begin and end, and the length penalty (alpha) of their scores."""

    bos_id: int
    eos_id: int
    max_len: int
    max_len_ratio: float
    alpha: float = 0.0

    def max_lengths(self, src: Tensor, pad_id: int) -> Tensor:
        """How many tokens (EOS included) a translation of each sentence of src [B,S] may have, [B].

        min(max_len, max_len_ratio * source tokens + 10), whatever else is in the batch.
        """
        n_source = (src != pad_id).sum(dim=1)
        return (n_source.double() * self.max_len_ratio).long().add(10).clamp(max=self.max_len)


def length_penalty(length: Tensor, alpha: float) -> Tensor:
    """((5 + length) / 6)^alpha for lengths with EOS (Wu et al. 2016, equation 14)."""
    return ((5.0 + length) / 6.0) ** alpha


def never_generated(pad_id: int, bos_id: int, eos_id: int) -> tuple[int, ...]:
    """Ids that no translation holds: padding and the start id, unless one of them is EOS."""
    return tuple(sorted({pad_id, bos_id} - {eos_id}))


def steps_between_looks(device: torch.device) -> int:
    """Steps between two checks for ended sentences: on a GPU a check waits for the device."""
    return 1 if device.type == "cpu" else 8


def allowed_log_probs(logits: Tensor, never: Tensor) -> Tensor:
    """logits [...,V], which may be overwritten -> log-probabilities, -inf for the ids `never`."""
    exact = logits if logits.dtype == torch.float64 else logits.float()
    out = exact if exact.device.type == "cpu" else None  # reuse memory that the cache holds
    return torch.log_softmax(exact, dim=-1, out=out).index_fill_(-1, never, -torch.inf)


def best_tokens(log_probs: Tensor, n: int) -> tuple[Tensor, Tensor]:
    """log_probs [...,V] -> the n largest, best first, and their ids, [...,n] each.

    Many are searched in two stages on a CPU, where topk and max take several times as long as the
    maxima of parts. The n best of a row lie in the n parts with the largest maxima, or in what is
    left over after the last whole part.
    """
    vocab_size = log_probs.shape[-1]
    n_parts = vocab_size // _WIDTH
    if log_probs.device.type != "cpu" or log_probs.numel() < _MANY or n_parts < 4 * n:
        return _largest(log_probs, n)
    whole = n_parts * _WIDTH
    _, part = _largest(log_probs[..., :whole].unflatten(-1, (n_parts, _WIDTH)).amax(dim=-1), n)
    in_parts = (part[..., None] * _WIDTH + torch.arange(_WIDTH)).flatten(-2)
    left_over = torch.arange(whole, vocab_size).expand(*part.shape[:-1], -1)
    ids = torch.cat((in_parts, left_over), dim=-1)
    values, index = _largest(log_probs.gather(-1, ids), n)
    return values, ids.gather(-1, index)


def _largest(values: Tensor, n: int) -> tuple[Tensor, Tensor]:
    """Of equals max takes the first, topk any: a single best token is the same in any batch."""
    return values.max(dim=-1, keepdim=True) if n == 1 else values.topk(n, dim=-1)
