"""Search against brute force, against one without cache or batch, and against itself batched."""

from __future__ import annotations

import gc
import itertools
import math
import weakref
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from typing import Any, cast

import pytest
import torch
from operations import WAITS, Operations
from tiny_models import (
    BOS,
    EOS,
    LIMITS,
    N_LAYERS,
    PAD,
    TOYS,
    VOCAB,
    forced_log_prob,
    lively,
    sources,
    tiny_model,
    vocabulary,
)
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

from configs.schema import Position, Rope, Sampling, Sinusoidal
from models import linear
from models.decode_state import LayerStep
from models.decoding import beam, hypothesis, stepwise
from models.decoding.beam import beam_search
from models.decoding.hypothesis import (
    Hypothesis,
    Limits,
    allowed_log_probs,
    best_tokens,
    never_generated,
)
from models.decoding.prefix import Prefixed
from models.decoding.protocol import SearchModel
from models.decoding.repetition import Unrepeated
from models.decoding.stepwise import greedy_search, sample_search
from models.transformer import TranslationTransformer

FOUR = {"beam_size": 4, "n_best": 4}
DIVERSE = {"beam_size": 6, "n_best": 6, "groups": 3, "strength": 0.8}


def assert_alike(ours: list[Hypothesis], theirs: list[Hypothesis], near: float = 1e-10) -> None:
    assert [(h.ids, h.finished) for h in ours] == [(h.ids, h.finished) for h in theirs]
    for a, b in zip(ours, theirs):
        assert (a.log_prob, a.score) == pytest.approx((b.log_prob, b.score), abs=near, rel=0)


def repeats(ids: tuple[int, ...], n: int) -> bool:
    """Whether the last n-gram stands before, too."""
    grams = [ids[i : i + n] for i in range(len(ids) - n + 1)]
    return n > 0 and len(grams) > 1 and grams[-1] in grams[:-1]


@torch.no_grad()
def naive_search(
    model: TranslationTransformer,
    sentence: Tensor,
    *,
    size: int,
    limit: int,
    alpha: float = 0.6,
    groups: int = 1,
    strength: float = 0.0,
    early_stop: bool = True,
    prefix: tuple[int, ...] = (),
    ngram: int = 0,
) -> list[Hypothesis]:
    """Beam search for one sentence over whole prefixes: no cache, no batch, lists and tuples.

    In groups: algorithm 1 of Vijayakumar et al. A group ends when its pool is full and none of its
    live hypotheses can overtake the last one in it.
    """
    sentence = sentence[sentence != PAD]
    live: list[list[tuple[float, tuple[int, ...]]]] = [[(0.0, ())] for _ in range(groups)]
    pools: list[list[Hypothesis]] = [[] for _ in range(groups)]

    def hypothesis(log_prob: float, ids: tuple[int, ...]) -> Hypothesis:
        score = log_prob / ((5 + len(ids)) / 6) ** alpha
        return Hypothesis(tuple(i for i in ids if i != EOS), log_prob, score, ids[-1] == EOS)

    for step in range(limit):
        if not any(live):
            break
        used: Counter[int] = Counter()
        every = list({ids for group in live for _, ids in group})
        prefixes = torch.tensor([[BOS, *ids] for ids in every])
        log_probs = model(sentence.expand(len(every), -1), prefixes)[:, -1].log_softmax(-1)
        following = dict(zip(every, log_probs.tolist()))
        for g in range(groups):
            candidates = [
                (total + value * (step >= len(prefix)), (*ids, token))
                for total, ids in live[g]
                for token, value in enumerate(following[ids])
                if token != PAD and token in (prefix[step : step + 1] or (token,))
                if step < len(prefix) or not repeats((*ids, token), ngram)
            ]
            candidates.sort(key=lambda c: strength * used[c[1][-1]] - c[0])
            pools[g] += [hypothesis(*c) for c in candidates[:size] if c[1][-1] == EOS]
            pools[g] = sorted(pools[g], key=lambda h: -h.score)[:size]
            live[g] = [c for c in candidates[: 2 * size] if c[1][-1] != EOS][:size]
            if early_stop and live[g] and len(pools[g]) == size:
                ahead = max(total for total, _ in live[g]) / ((5 + limit) / 6) ** alpha
                if size == 1 or pools[g][-1].score >= ahead:
                    live[g] = []
            used.update(ids[-1] for _, ids in live[g])
    rest = [hypothesis(*c) for group in live for c in group]
    found = {(h.ids, h.finished): h for h in [*itertools.chain(*pools), *rest]}
    return sorted(found.values(), key=lambda h: (not h.finished, -h.score))[: size * groups]


# --------------------------------------------------------------------------- against other searches


@pytest.mark.parametrize("alpha", [0.0, 0.6, 1.5])
def test_a_beam_as_wide_as_the_space_finds_the_best_of_all_sequences(alpha: float) -> None:
    vocab, pad, longest = 7, 6, 5
    small = vocabulary(src_vocab_size=vocab, tgt_vocab_size=vocab, pad_id=pad)
    layers: Any = {"n_encoder_layers": 1, "n_decoder_layers": 1}
    model = tiny_model(Rope(), seed=1, vocab=small, gain=1.2, **layers)
    src = torch.tensor([[3, 2, 5, EOS], [4, EOS, pad, pad], [2, 2, EOS, pad]])
    sequences = [
        (*words, EOS) for n in range(longest) for words in itertools.product(range(1, 6), repeat=n)
    ]
    tgt_in, tgt_out = torch.full((2, len(sequences), longest), pad).unbind(0)
    for row, ids in enumerate(sequences):
        tgt_out[row, : len(ids)] = torch.tensor(ids)
        tgt_in[row, 1 : len(ids)] = torch.tensor(ids[:-1])
    limits = Limits(bos_id=pad, eos_id=EOS, max_len=longest, max_len_ratio=2.0, alpha=alpha)
    found = beam_search(model, src, limits, beam_size=800, n_best=10)
    for sentence, hypotheses in zip(src, found):
        with torch.no_grad():
            log_probs = model(sentence.expand(len(sequences), -1), tgt_in).log_softmax(-1)
        at_target = log_probs.gather(-1, tgt_out[:, :, None]).squeeze(-1)
        totals = at_target.masked_fill(tgt_out == pad, 0).sum(-1).tolist()
        every = [
            Hypothesis(ids[:-1], total, total / ((5 + len(ids)) / 6) ** alpha, True)
            for total, ids in zip(totals, sequences)
        ]
        assert_alike(hypotheses, sorted(every, key=lambda h: -h.score)[:10], 1e-12)


# That steps go on as a whole prefix says, test_model.py holds for every scheme.
@pytest.mark.parametrize("name", [*TOYS, "learnable", "rope", "fox", "randomized_rope", "torch"])
def test_cached_batched_search_equals_the_naive_one(name: str) -> None:
    model, src = lively(name), sources(5, 3, 7)
    found = beam_search(model, src, replace(LIMITS, alpha=0.8), beam_size=3, n_best=3)
    for sentence, ours in zip(src, found):
        assert_alike(ours, naive_search(model, sentence, size=3, alpha=0.8, limit=9))


GROUPS = [(2, 0.3, 0.0), (2, 1.5, 0.6), (3, 0.7, 1.0), (3, 0.0, 0.6), (3, 2.0, 1.5), (6, 0.8, 0.6)]


@pytest.mark.parametrize("seed", [0, 1])
@pytest.mark.parametrize("drawn", GROUPS)
def test_a_beam_in_groups_equals_the_naive_one(seed: int, drawn: tuple[int, float, float]) -> None:
    model, src = lively(seed=seed), sources(5, 3, 7, seed=seed)
    groups, strength, alpha = drawn
    how = {"groups": groups, "strength": strength}
    limits = replace(LIMITS, alpha=alpha)
    for sentence, ours in zip(src, beam_search(model, src, limits, beam_size=6, n_best=6, **how)):
        theirs = naive_search(model, sentence, size=6 // groups, alpha=alpha, limit=9, **how)
        assert_alike(ours, theirs)


@pytest.mark.parametrize("alpha", [0.0, 0.6, 1.5])
def test_stopping_early_loses_nothing(alpha: float, monkeypatch: pytest.MonkeyPatch) -> None:
    n_steps, n_of_one = [], []
    for seed in range(6):
        model, src = lively(seed=seed), sources(4, seed=seed)
        step, lengths = model.decode_step, []
        counted = lambda t, s: lengths.append(s.length) or step(t, s)  # noqa: B023, E731
        monkeypatch.setattr(model, "decode_step", counted)
        limits = replace(LIMITS, max_len=12, alpha=alpha)
        (found,) = beam_search(model, src, limits, **FOUR)
        n_steps.append(len(lengths))
        whole = naive_search(model, src[0], size=4, alpha=alpha, limit=12, early_stop=False)
        assert_alike(found, whole)
        lengths.clear()
        [[best]] = beam_search(model, src, limits, beam_size=4, n_best=1)
        n_of_one.append(len(lengths))
        assert_alike([best], whole[:1])
    assert min(n_steps) < 12  # ... and it does stop
    assert sum(n_of_one) < sum(n_steps)  # the sooner the fewer are asked for


class Chain:
    """A model whose next token depends on the last one alone, by a table of probabilities."""

    pad_id = PAD

    def __init__(self, following: dict[int, dict[int, float]]) -> None:
        probabilities = torch.full((VOCAB, VOCAB), 1e-9, dtype=torch.float64)
        for token, choices in following.items():
            for choice, probability in choices.items():
                probabilities[token, choice] = probability
        self.logits = probabilities.log()

    def encode(self, src: Tensor) -> None:
        return None

    def init_state(self, memory: None, *, beam_size: int, max_len: int) -> Chain:
        return self

    def reorder(self, beam_index: Tensor) -> None: ...

    def select(self, alive: Tensor) -> None: ...

    def decode_step(self, tokens: Tensor, state: Chain) -> Tensor:
        return self.logits[tokens]


def test_a_full_pool_waits_for_a_live_hypothesis_that_length_will_lift() -> None:
    a, b, c, d, e = 2, 3, 4, 5, 6
    chain = Chain(
        {
            BOS: {EOS: 0.45, a: 0.35, b: 0.2},
            # the pool of two is full, and (a, c) is behind both at its present length
            a: {EOS: 0.51, c: 0.49},
            b: dict.fromkeys(range(1, 10), 1 / 9),
            c: {d: 0.97, EOS: 0.03},
            d: {e: 0.97, EOS: 0.03},
            e: {EOS: 1.0},
        }
    )
    model, src = cast(TranslationTransformer, chain), sources(2)
    lifting, plain = (replace(LIMITS, max_len=12, alpha=alpha) for alpha in (3.0, 0.0))
    best, second = beam_search(model, src, lifting, beam_size=2, n_best=2)[0]
    assert (best.ids, second.ids) == ((a, c, d, e), ())
    assert best.score == pytest.approx(math.log(0.35 * 0.49 * 0.97**2) / (10 / 6) ** 3, abs=1e-6)
    found = beam_search(model, src, plain, beam_size=2, n_best=2)[0]
    assert [h.ids for h in found] == [(), (a,)]
    # A single beam is greedy search: it ends with its first EOS, whatever length would lift.
    [[single]] = beam_search(model, src, lifting, beam_size=1, n_best=1)
    [[greedy]] = greedy_search(model, src, lifting)
    assert single.ids == greedy.ids == ()
    [found] = beam_search(model, src, lifting, beam_size=2, n_best=2, groups=2)
    assert [h.ids for h in found] == [()]  # as does each group of one


def test_hypotheses_cut_off_rank_behind_finished_ones_and_say_so() -> None:
    kinds = set()
    for seed in range(5):
        model, src = lively(seed=seed), sources(4, 6, seed=seed)
        for sentence, ours in zip(src, beam_search(model, src, replace(LIMITS, max_len=3), **FOUR)):
            assert_alike(ours, naive_search(model, sentence, size=4, limit=3))
            kinds |= {h.finished for h in ours}
    assert kinds == {True, False}


@pytest.mark.parametrize(
    ("name", "alpha"), [("rope", 0.0), ("rope", 1.0), ("learnable", 1.0), ("torch", 0.0)]
)
def test_greedy_equals_a_beam_of_one(name: str, alpha: float) -> None:
    kinds, limits = set(), replace(LIMITS, max_len=12, alpha=alpha)
    for seed in range(4):
        model, src = lively(name, seed), sources(4, 7, 2, seed=seed)
        beams = beam_search(model, src, limits, beam_size=1, n_best=1, watch=lambda *_: None)
        for sentence, found, single in zip(src, greedy_search(model, src, limits), beams):
            assert_alike(found, single, 1e-12)
            assert_alike(found, naive_search(model, sentence, size=1, alpha=alpha, limit=12))
            kinds.add(found[0].finished)
    assert kinds == {True, False}


def test_of_equal_tokens_greedy_search_and_a_beam_of_one_take_the_same() -> None:
    vocab = vocabulary(src_vocab_size=300, tgt_vocab_size=300)
    model, src = lively(vocab=vocab).bfloat16(), sources(*range(2, 22))
    beams = beam_search(model, src, LIMITS, beam_size=1, n_best=1)
    for found, single in zip(greedy_search(model, src, LIMITS), beams):
        assert_alike(found, single, 0.0)


PREFIXES = ((), (3,), (5, 2, 4, 7, 3, 6, 2, 5, 4, 3, 7, 2, 6), (2, 6))  # one ends behind others


def prefixed(model: SearchModel, prefixes: Sequence[tuple[int, ...]] = PREFIXES) -> Prefixed:
    rows = [torch.tensor(ids, dtype=torch.long) for ids in prefixes]
    return Prefixed(model, pad_sequence(rows, batch_first=True, padding_value=-1))


@pytest.mark.parametrize("name", ["rope", "fox", "torch"])
@pytest.mark.parametrize("how", [{}, {"groups": 3, "strength": 0.8}, {"size": 1}], ids=str)
def test_a_translation_that_begins_as_told_equals_the_naive_one(name: str, how: dict) -> None:
    model, src = lively(name, 3), sources(5, 3, 7, 6)
    limits = replace(LIMITS, max_len=16, max_len_ratio=0.8)
    size, groups = how.get("size", 6), {k: v for k, v in how.items() if k != "size"}
    found = beam_search(prefixed(model), src, limits, beam_size=size, n_best=size, **groups)
    how = {**how, "size": size // how.get("groups", 1)}
    lengths = limits.max_lengths(src, PAD).tolist()
    for sentence, limit, ids, ours in zip(src, lengths, PREFIXES, found, strict=True):
        assert all(h.ids[: len(ids)] == ids for h in ours)
        assert_alike(ours, naive_search(model, sentence, limit=limit, prefix=ids, **how))


def test_a_sample_that_begins_as_told_goes_on_by_chance() -> None:
    model, src, hot = lively(), sources(5, 3), Sampling(temperature=2.0, top_p=0.9)
    free, begun = (
        sample_search(each, src, LIMITS, hot, n_samples=8, numbers=[0, 1])
        for each in (model, prefixed(model, [(), (5, 2)]))
    )
    assert begun[0] == free[0]
    assert len({h.ids for h in begun[1]}) > 2
    given = forced_log_prob(model, src[1], Hypothesis((5, 2), 0.0, 0.0, finished=False))
    for h in begun[1]:
        assert h.ids[:2] == (5, 2)
        follows = forced_log_prob(model, src[1], h) - given
        assert h.log_prob == pytest.approx(follows, abs=1e-10)


@pytest.mark.parametrize("n", [1, 2, 3])
@pytest.mark.parametrize("how", [{}, {"groups": 3, "strength": 0.8}, {"size": 1}], ids=str)
def test_a_translation_without_repeated_ngrams_equals_the_naive_one(n: int, how: dict) -> None:
    model, src, changed = lively(seed=3), sources(5, 3, 7, 6), 0
    limits = replace(LIMITS, max_len=16, max_len_ratio=0.8)
    size, groups = how.get("size", 6), {k: v for k, v in how.items() if k != "size"}
    how = {**how, "size": size // how.get("groups", 1)}
    begun = ((), (3,), (5, 2, 5, 2, 5), (2, 6))  # which may repeat
    for prefixes in (((),) * 4, begun):
        searched = prefixed(Unrepeated(model, n), prefixes)
        found = beam_search(searched, src, limits, beam_size=size, n_best=size, **groups)
        lengths = limits.max_lengths(src, PAD).tolist()
        for sentence, limit, ids, ours in zip(src, lengths, prefixes, found, strict=True):
            free = naive_search(model, sentence, limit=limit, prefix=ids, **how)
            theirs = naive_search(model, sentence, limit=limit, prefix=ids, ngram=n, **how)
            assert_alike(ours, theirs)
            changed += [h.ids for h in free] != [h.ids for h in theirs]
    assert changed > 2


# ------------------------------------------------------------------------------- batches and limits


@pytest.mark.parametrize("name", ["rope", "relative_bias_cross", "torch"])
def test_a_translation_does_not_depend_on_the_batch_around_it(name: str) -> None:
    model, lengths = lively(name, 3), (5, 2, 8, 3, 6, 2, 7)
    src = sources(*lengths)
    padded = torch.cat((src, torch.full((7, 4), PAD)), dim=1)
    order = [3, 6, 0, 2, 5, 1, 4]
    batches = [(src, range(7)), (padded, range(7)), (src[order], order), (src[:2], (0, 1))]
    # The limits differ: sentences leave the search one after the other.
    limits = replace(LIMITS, max_len=16, max_len_ratio=0.8)
    for search in (
        lambda s: beam_search(model, s, limits, **FOUR),
        lambda s: beam_search(model, s, limits, **DIVERSE),
        lambda s: greedy_search(model, s, limits),
    ):
        alone = [search(row[None, :n])[0] for row, n in zip(src, lengths)]
        for batch, members in batches:
            for hypotheses, index in zip(search(batch), members):
                assert_alike(hypotheses, alone[index])


@pytest.mark.parametrize("name", ["rope", "fox"])
def test_to_look_seldom_which_sentences_have_ended_changes_nothing(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    limits, sampling = replace(LIMITS, max_len=11, max_len_ratio=0.8), Sampling(temperature=0.7)
    searches = (
        lambda m, s: beam_search(m, s, limits, **FOUR),
        lambda m, s: beam_search(m, s, limits, **DIVERSE),
        lambda m, s: beam_search(m, s, limits, beam_size=1, n_best=1),
        lambda m, s: greedy_search(m, s, limits),
        lambda m, s: sample_search(m, s, limits, sampling, n_samples=2, numbers=range(len(s))),
    )
    model, src = lively(name, 3), sources(5, 2, 8, 3)
    always = [search(model, src) for search in searches]
    for module in (beam, stepwise):
        monkeypatch.setattr(module, "steps_between_looks", lambda device: 4)
    for search, expected in zip(searches, always):
        for hypotheses, others in zip(search(model, src), expected, strict=True):
            assert_alike(hypotheses, others)


def test_each_sentence_has_a_length_limit_of_its_own() -> None:
    src = sources(2, 9, 5)
    table = ((20, 1.5, [13, 20, 17]), (20, 0.1, [10, 10, 10]), (4, 1.5, [4, 4, 4]))
    for max_len, ratio, expected in table:
        limits = replace(LIMITS, max_len=max_len, max_len_ratio=ratio)
        assert limits.max_lengths(src, PAD).tolist() == expected
    exact = replace(LIMITS, max_len=999, max_len_ratio=1.3)  # in float32 1.3 is less
    assert exact.max_lengths(sources(90), PAD).tolist() == [127]
    model = lively(seed=2)
    with torch.no_grad():
        model.output.weight[EOS] = 0
        model.decoder.norm.bias[:] = 0
    limits = replace(LIMITS, max_len=20, max_len_ratio=1.5)
    found = [best for [best] in greedy_search(model, src, limits)]
    assert [(len(h.ids), h.finished) for h in found] == [(13, False), (20, False), (17, False)]
    for hypotheses, limit in zip(beam_search(model, src, limits, **FOUR), (13, 20, 17)):
        assert all(len(h.ids) + h.finished <= limit for h in hypotheses)


# ----------------------------------------------------------------------------------- what comes out


def test_padding_and_start_are_never_generated() -> None:
    model, src = lively(), sources(4, 6)
    with torch.no_grad():
        direction = model.output.weight[4].clone()
        model.output.weight[PAD] = 3 * direction  # the model would love to
        model.output.weight[2] = 3 * direction + 0.01
    for limits, never in ((LIMITS, {PAD, EOS}), (replace(LIMITS, bos_id=2), {2, PAD, EOS})):
        found = [*beam_search(model, src, limits, **FOUR), *greedy_search(model, src, limits)]
        assert all(never.isdisjoint(h.ids) for h in itertools.chain(*found))


def test_ids_that_are_never_generated() -> None:
    assert never_generated(pad_id=10, bos_id=10, eos_id=0) == (10,)
    assert never_generated(pad_id=0, bos_id=1, eos_id=2) == (0, 1)
    assert never_generated(pad_id=0, bos_id=2, eos_id=2) == (0,)  # decoding may start from EOS
    logits = torch.zeros(1, 4, dtype=torch.bfloat16)
    log_probs = allowed_log_probs(logits, torch.tensor([3, 0]))
    assert log_probs.dtype == torch.float32
    quarter = -math.log(4)
    assert log_probs[0].tolist() == pytest.approx([-math.inf, quarter, quarter, -math.inf])
    assert (logits == 0).all()


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("shape", [(1, 1, 3), (2, 3, 1237), (40, 5, 8000), (3, 1, 100_003)])
def test_log_probabilities_in_the_memory_of_the_logits(
    shape: tuple[int, ...], dtype: torch.dtype
) -> None:
    torch.manual_seed(0)
    logits, never = torch.randn(shape, dtype=dtype), torch.tensor([0])
    logits[..., 1] = -torch.inf
    expected = logits.log_softmax(dim=-1).index_fill(-1, never, -torch.inf)
    found = allowed_log_probs(logits, never)
    assert torch.equal(found, expected)
    assert found.data_ptr() == logits.data_ptr()


def test_a_beam_wider_than_the_vocabulary_works() -> None:
    model, src, wide = lively(), sources(4, 3), 3 * VOCAB
    # With room for one token: every token but padding, which are EOS and nine cut off.
    for max_len, n in ((5, wide), (1, VOCAB - 1)):
        limits = replace(LIMITS, max_len=max_len)
        for hypotheses in beam_search(model, src, limits, beam_size=wide, n_best=wide):
            assert len({(h.ids, h.finished) for h in hypotheses}) == len(hypotheses) == n
            assert all(math.isfinite(h.score) for h in hypotheses)


@pytest.mark.parametrize("n", [1, 3, 10])
@pytest.mark.parametrize("vocab_size", [12, 400, 1234, 6000])
def test_the_best_tokens_are_those_of_topk(
    n: int, vocab_size: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(hypothesis, "_MANY", 0)
    log_probs = torch.randn(3, 4, vocab_size, generator=torch.Generator().manual_seed(n))
    log_probs[0, :, vocab_size // 2 :] = -torch.inf
    log_probs[1, 0, -5:] += 10.0  # in what no whole part holds
    for rows in (log_probs, log_probs[1]):
        values, ids = best_tokens(rows, n)
        expected = rows.topk(n, dim=-1)
        assert torch.equal(values, expected.values)
        assert torch.equal(ids, expected.indices)
    equal = torch.zeros(2, vocab_size)
    assert best_tokens(equal, 1)[1].tolist() == [[0], [0]]


@pytest.mark.parametrize("position", [Sinusoidal(), Rope(form="real")])
def test_a_step_of_six_layers_asks_little_of_a_device_and_seldom_waits(
    position: Position, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(beam, "steps_between_looks", lambda device: 8)
    model, src = tiny_model(position, n_decoder_layers=6).float(), sources(6, 4)
    counts = []
    for n_steps in (9, 17):
        limits = replace(LIMITS, eos_id=VOCAB, max_len=n_steps, max_len_ratio=99)
        with Operations() as asked:
            beam_search(model, src, limits, beam_size=5, n_best=1)
        counts.append(asked.counts)
    eight = counts[1] - counts[0]
    assert eight.total() <= 8 * 160
    assert sum(eight[name] for name in WAITS) <= 1


def test_a_search_keeps_no_step_of_its_layers(monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[weakref.ref[LayerStep]] = []
    make = LayerStep.__init__

    def noted(step: LayerStep, *args: Any) -> None:
        make(step, *args)
        made.append(weakref.ref(step))

    monkeypatch.setattr(LayerStep, "__init__", noted)
    gc.disable()
    try:
        beam_search(lively(), sources(5, 2), LIMITS, **FOUR)
        assert len(made) == N_LAYERS
        assert not any(step() for step in made)
    finally:
        gc.enable()


@pytest.mark.parametrize("bias", [True, False])
def test_weights_laid_out_for_a_search_find_the_same(
    bias: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    model, src = lively(bias=bias).float(), sources(5, 2, 8, 3)
    limits = replace(LIMITS, max_len=11, max_len_ratio=0.8)  # sentences leave one after the other
    searches = (partial(beam_search, **FOUR), greedy_search)
    plain = [search(model, src, limits) for search in searches]
    monkeypatch.setattr(linear, "_WORTH", 1)
    with linear.weights_fixed():
        for search, expected in zip(searches, plain):
            for ours, theirs in zip(search(model, src, limits), expected, strict=True):
                assert_alike(ours, theirs, 1e-5)
        assert len(linear._laid_out.get() or ()) == (4 + 7) * N_LAYERS + 1
