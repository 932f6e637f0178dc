"""Search against brute force, against a search written out here without cache or batch, and against
itself batched.
"""

from __future__ import annotations

import copy
import itertools
import math
from typing import cast

import pytest
import torch
from tiny_models import (
    ALL_SCHEMES,
    BOS,
    EOS,
    PAD,
    VOCAB,
    model_with,
    sources,
    tiny_model,
    vocabulary,
)
from torch import Tensor

import models.linear
from configs.schema import Rope
from models.decoding.beam import beam_search
from models.decoding.greedy import greedy_search
from models.decoding.hypothesis import (
    Hypothesis,
    allowed_log_probs,
    best_tokens,
    length_limits,
    length_penalty,
    never_generated,
)
from models.decoding.scoring import score_targets
from models.transformer import TranslationTransformer

IDS = {"bos_id": BOS, "eos_id": EOS}


def beam(model: TranslationTransformer, src: Tensor, **changes) -> list[list[Hypothesis]]:
    settings = {"beam_size": 4, "n_best": 4, "alpha": 0.6, "max_len": 12, "max_len_ratio": 1.0}
    return beam_search(model, src, **IDS, **{**settings, **changes})


def greedy(model: TranslationTransformer, src: Tensor, **changes) -> list[Hypothesis]:
    return greedy_search(model, src, **IDS, **{"max_len": 12, "max_len_ratio": 1.0, **changes})


def lively(name: str = "rope", seed: int = 0, **changes) -> TranslationTransformer:
    """A model that neither stops at once nor never: EOS is as likely as chance has it."""
    return model_with(name, seed=seed, gain=1.2, **changes)


def assert_alike(
    ours: list[Hypothesis], theirs: list[Hypothesis], tolerance: float = 1e-10
) -> None:
    assert [(h.ids, h.finished) for h in ours] == [(h.ids, h.finished) for h in theirs]
    for a, b in zip(ours, theirs):
        assert a.log_prob == pytest.approx(b.log_prob, abs=tolerance, rel=0)
        assert a.score == pytest.approx(b.score, abs=tolerance, rel=0)


def naive_beam(
    model: TranslationTransformer,
    sentence: Tensor,
    *,
    beam_size: int,
    alpha: float,
    limit: int,
    early_stop: bool = True,
) -> list[Hypothesis]:
    """Beam search for one sentence over whole prefixes: no cache, no batch, lists and tuples."""
    live: list[tuple[float, tuple[int, ...]]] = [(0.0, ())]
    pool: list[Hypothesis] = []

    def normalised(log_prob: float, length: int) -> float:
        return log_prob / ((5 + length) / 6) ** alpha

    for length in range(1, limit + 1):
        prefixes = torch.tensor([[BOS, *ids] for _, ids in live])
        log_probs = model(sentence.expand(len(live), -1), prefixes)[:, -1].log_softmax(-1)
        candidates = [
            (total + log_probs[row, token].item(), (*ids, token))
            for row, (total, ids) in enumerate(live)
            for token in range(log_probs.shape[1])
            if token not in {PAD, BOS} - {EOS}
        ]
        candidates.sort(key=lambda candidate: -candidate[0])
        candidates = candidates[: 2 * beam_size]
        for total, ids in candidates[:beam_size]:
            if ids[-1] == EOS:
                pool.append(Hypothesis(ids[:-1], total, normalised(total, length), True))
        pool = sorted(pool, key=lambda h: -h.score)[:beam_size]
        live = [candidate for candidate in candidates if candidate[1][-1] != EOS][:beam_size]
        if (
            early_stop
            and len(pool) == beam_size
            and pool[-1].score >= normalised(live[0][0], limit)
        ):
            break
        if beam_size == 1 and pool:
            break
    else:
        rest = [Hypothesis(ids, total, normalised(total, limit), False) for total, ids in live]
        pool = (pool + rest)[:beam_size]
    return pool


# -------------------------------------------------------------------------------------- brute force


@pytest.mark.parametrize("alpha", [0.0, 0.6, 1.5])
def test_a_beam_as_wide_as_the_space_finds_the_best_of_all_sequences(alpha: float) -> None:
    vocab, pad, limit = 7, 6, 5
    small = vocabulary(src_vocab_size=vocab, tgt_vocab_size=vocab, pad_id=pad)
    model = tiny_model(
        Rope(), seed=1, vocab=small, gain=1.2, n_encoder_layers=1, n_decoder_layers=1
    )
    src = torch.tensor([[3, 2, 5, EOS], [4, EOS, pad, pad], [2, 2, EOS, pad]])
    sequences = [
        (*words, EOS) for n in range(limit) for words in itertools.product(range(1, 6), repeat=n)
    ]
    tgt_in, tgt_out = torch.full((2, len(sequences), limit), pad).unbind(0)
    for row, ids in enumerate(sequences):
        tgt_out[row, : len(ids)] = torch.tensor(ids)
        tgt_in[row, 1 : len(ids)] = torch.tensor(ids[:-1])
    found = beam_search(
        model,
        src,
        bos_id=pad,
        eos_id=EOS,
        beam_size=800,
        n_best=10,
        alpha=alpha,
        max_len=limit,
        max_len_ratio=2.0,
    )
    for sentence, hypotheses in zip(src, found):
        with torch.no_grad():
            log_probs = model(sentence.expand(len(sequences), -1), tgt_in).log_softmax(-1)
        totals = (
            log_probs.gather(-1, tgt_out[:, :, None])
            .squeeze(-1)
            .masked_fill(tgt_out == pad, 0)
            .sum(-1)
            .tolist()
        )
        scored = [
            (total / ((5 + len(ids)) / 6) ** alpha, total, ids[:-1])
            for total, ids in zip(totals, sequences)
        ]
        best = sorted(scored, reverse=True)[:10]
        assert [h.ids for h in hypotheses] == [ids for *_, ids in best]
        assert all(h.finished for h in hypotheses)
        assert [h.score for h in hypotheses] == pytest.approx(
            [score for score, *_ in best], abs=1e-12, rel=0
        )
        assert [h.log_prob for h in hypotheses] == pytest.approx(
            [total for _, total, _ in best], abs=1e-12, rel=0
        )


# ---------------------------------------------------------------------- no cache, no batch, no stop


@pytest.mark.parametrize("name", [*ALL_SCHEMES, "torch"])
def test_cached_batched_search_equals_the_naive_one_for_every_scheme(name: str) -> None:
    model = lively(name)
    src = sources(5, 3, 7)
    limits = length_limits(src, pad_id=PAD, ratio=0.5, max_len=9).tolist()
    assert limits == [9, 9, 9]
    with torch.no_grad():
        expected = [
            naive_beam(model, row[:n], beam_size=3, alpha=0.8, limit=9)
            for row, n in zip(src, (5, 3, 7))
        ]
    found = beam(model, src, beam_size=3, n_best=3, alpha=0.8, max_len=9, max_len_ratio=0.5)
    for ours, theirs in zip(found, expected):
        assert_alike(ours, theirs)


@pytest.mark.parametrize("alpha", [0.0, 0.6, 1.5])
def test_stopping_early_loses_nothing(alpha: float) -> None:
    n_steps = []
    for seed in range(6):
        model = lively(seed=seed)
        src = sources(4, seed=seed)
        steps = 0
        real_step = model.decode_step

        def counted(tokens, state):
            nonlocal steps
            steps += 1
            return real_step(tokens, state)  # noqa: B023

        model.decode_step = counted  # type: ignore[method-assign]
        found = beam(model, src, alpha=alpha, max_len=12)[0]
        n_steps.append(steps)
        with torch.no_grad():
            patient = naive_beam(
                model, src[0], beam_size=4, alpha=alpha, limit=12, early_stop=False
            )
        assert_alike(found, patient)
    assert min(n_steps) < 12  # ... and it does stop


class Chain:
    """The protocol of a model whose next token depends on the last one alone, by a table of
    probabilities.
    """

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
    spread = dict.fromkeys(range(1, 10), 1 / 9)
    chain = Chain(
        {
            BOS: {EOS: 0.45, a: 0.35, b: 0.2},
            a: {
                EOS: 0.51,
                c: 0.49,
            },  # the pool of two is full, and (a, c) is behind both at its present length
            b: spread,
            c: {d: 0.97, EOS: 0.03},
            d: {e: 0.97, EOS: 0.03},
            e: {EOS: 1.0},
        }
    )
    settings = {"beam_size": 2, "n_best": 2, "max_len_ratio": 1.0}
    model, src = cast(TranslationTransformer, chain), sources(2)
    best, second = beam(model, src, alpha=3.0, **settings)[0]
    assert (best.ids, second.ids) == ((a, c, d, e), ())
    assert best.score == pytest.approx(math.log(0.35 * 0.49 * 0.97**2) / (10 / 6) ** 3, abs=1e-6)
    assert [h.ids for h in beam(model, src, alpha=0.0, **settings)[0]] == [(), (a,)]
    # A single beam is greedy search: it ends with its first EOS, whatever length would lift.
    (single,) = beam(model, src, alpha=3.0, beam_size=1, n_best=1)[0]
    assert single.ids == greedy(model, src, alpha=3.0)[0].ids == ()


def test_hypotheses_cut_off_rank_behind_finished_ones_and_say_so() -> None:
    cut = finished = 0
    for seed in range(5):
        model, src = lively(seed=seed), sources(4, 6, seed=seed)
        with torch.no_grad():
            expected = [
                naive_beam(model, row[:n], beam_size=4, alpha=0.6, limit=3)
                for row, n in zip(src, (4, 6))
            ]
        for ours, theirs in zip(beam(model, src, max_len=3), expected):
            assert_alike(ours, theirs)
            flags = [h.finished for h in ours]
            assert flags == sorted(flags, reverse=True)
            assert all(len(h.ids) == 3 for h in ours if not h.finished)
            cut += flags.count(False)
            finished += flags.count(True)
    assert cut
    assert finished


# ------------------------------------------------------------------------------- greedy and batches


@pytest.mark.parametrize(
    ("name", "alpha"), [("rope", 0.0), ("rope", 1.0), ("learnable", 1.0), ("torch", 0.0)]
)
def test_greedy_equals_a_beam_of_one(name: str, alpha: float) -> None:
    kinds = set()
    for seed in range(4):
        model, src = lively(name, seed), sources(4, 7, 2, seed=seed)
        single = [
            hypotheses[0] for hypotheses in beam(model, src, beam_size=1, n_best=1, alpha=alpha)
        ]
        found = greedy(model, src, alpha=alpha)
        assert_alike(found, single, 1e-12)
        with torch.no_grad():
            expected = [
                naive_beam(model, row[:n], beam_size=1, alpha=alpha, limit=min(12, n + 10))[0]
                for row, n in zip(src, (4, 7, 2))
            ]
        assert_alike(found, expected)
        kinds |= {h.finished for h in found}
    assert kinds == {True, False}


@pytest.mark.parametrize("name", ["rope", "relative_bias_cross", "torch"])
def test_a_translation_does_not_depend_on_the_batch_around_it(name: str) -> None:
    model = lively(name, 3)
    lengths = (5, 2, 8, 3, 6, 2, 7)
    src = sources(*lengths)
    room = {
        "max_len": 16,
        "max_len_ratio": 0.8,
    }  # the limits differ: sentences leave the search one after the other
    for search in (
        lambda s: beam(model, s, **room),
        lambda s: [[h] for h in greedy(model, s, **room)],
    ):
        alone = [search(row[None, :n])[0] for row, n in zip(src, lengths)]
        padded = torch.cat((src, torch.full((7, 4), PAD)), dim=1)
        order = [3, 6, 0, 2, 5, 1, 4]
        for batch, members in (
            (src, range(7)),
            (padded, range(7)),
            (src[order], order),
            (src[:2], (0, 1)),
        ):
            for hypotheses, index in zip(search(batch), members):
                assert_alike(hypotheses, alone[index])


def test_each_sentence_has_a_length_limit_of_its_own() -> None:
    model = lively(seed=2)
    with torch.no_grad():
        model.output.weight[EOS] = 0
        model.decoder.norm.bias[:] = 0
    src = sources(2, 9, 5)
    assert length_limits(src, pad_id=PAD, ratio=1.5, max_len=20).tolist() == [13, 20, 17]
    assert length_limits(src, pad_id=PAD, ratio=0.1, max_len=20).tolist() == [10, 10, 10]
    assert length_limits(src, pad_id=PAD, ratio=1.5, max_len=4).tolist() == [4, 4, 4]
    found = greedy(model, src, max_len=20, max_len_ratio=1.5)
    assert [len(h.ids) + h.finished for h in found] == [13, 20, 17]
    assert [h.finished for h in found] == [False] * 3
    for hypotheses, limit in zip(beam(model, src, max_len=20, max_len_ratio=1.5), (13, 20, 17)):
        assert all(len(h.ids) + h.finished <= limit for h in hypotheses)


def test_one_token_of_room_is_enough_to_answer() -> None:
    model, src = lively(), sources(3, 2)
    assert all(len(h.ids) + h.finished == 1 for h in greedy(model, src, max_len=1))
    for hypotheses in beam(model, src, max_len=1):
        assert len(hypotheses) == 4
        assert all(len(h.ids) + h.finished == 1 for h in hypotheses)


# ----------------------------------------------------------------------------------- what comes out


def test_n_best_is_sorted_distinct_and_scored_as_forced() -> None:
    for seed, alpha in itertools.product(range(3), (0.0, 0.6)):
        model, src = lively(seed=seed), sources(5, 3, 6, seed=seed)
        for sentence, hypotheses in zip(src, beam(model, src, alpha=alpha)):
            assert len(hypotheses) == 4
            assert len({(h.ids, h.finished) for h in hypotheses}) == 4
            for flag in (True, False):
                scores = [h.score for h in hypotheses if h.finished == flag]
                assert scores == sorted(scores, reverse=True)
            for h in hypotheses:
                ids = [*h.ids, EOS] if h.finished else list(h.ids)
                tgt_out = torch.tensor([ids])
                tgt_in = torch.tensor([[BOS, *ids[:-1]]])
                forced = score_targets(model, sentence[None], tgt_in, tgt_out).item()
                assert h.log_prob == pytest.approx(forced, abs=1e-10)
                assert h.score == pytest.approx(forced / ((5 + len(ids)) / 6) ** alpha, abs=1e-10)


def test_n_best_is_the_head_of_the_beam() -> None:
    model, src = lively(seed=1), sources(5, 3)
    for full, two in zip(beam(model, src), beam(model, src, n_best=2)):
        assert two == full[:2]
    with pytest.raises(ValueError, match="n_best = 5 is more than beam_size = 4"):
        beam(model, src, n_best=5)


def test_padding_and_start_are_never_generated() -> None:
    model, src = lively(), sources(4, 6)
    with torch.no_grad():
        direction = model.output.weight[4].clone()
        model.output.weight[PAD] = 3 * direction  # the model would love to
        model.output.weight[2] = 3 * direction + 0.01
    for hypotheses in [*beam(model, src), greedy(model, src)]:
        assert all(PAD not in h.ids and EOS not in h.ids for h in hypotheses)
    for hypotheses in beam_search(
        model,
        src,
        bos_id=2,
        eos_id=EOS,
        beam_size=3,
        n_best=3,
        alpha=0.0,
        max_len=6,
        max_len_ratio=1.0,
    ):
        assert all(2 not in h.ids and PAD not in h.ids for h in hypotheses)


def test_ids_that_are_never_generated() -> None:
    assert never_generated(pad_id=10, bos_id=10, eos_id=0) == (10,)
    assert never_generated(pad_id=0, bos_id=1, eos_id=2) == (0, 1)
    assert never_generated(pad_id=0, bos_id=2, eos_id=2) == (0,)  # decoding may start from EOS
    logits = torch.zeros(1, 4, dtype=torch.bfloat16)
    log_probs = allowed_log_probs(logits, (3, 0))
    assert log_probs.dtype == torch.float32
    assert log_probs[0].tolist() == pytest.approx(
        [-math.inf, -math.log(4), -math.log(4), -math.inf]
    )
    assert (logits == 0).all()


def test_the_length_penalty_is_gnmts() -> None:
    lengths = torch.tensor([1.0, 7.0], dtype=torch.float64)
    assert length_penalty(lengths, 0.0).tolist() == [1, 1]
    assert length_penalty(lengths, 1.0).tolist() == [1, 2]
    assert length_penalty(lengths, 0.5).tolist() == pytest.approx([1, math.sqrt(2)], rel=1e-15)


def test_a_longer_penalty_prefers_longer_translations() -> None:
    total = dict.fromkeys((0.0, 3.0), 0)
    for seed, alpha in itertools.product(range(6), total):
        total[alpha] += len(beam(lively(seed=seed), sources(4, seed=seed), alpha=alpha)[0][0].ids)
    assert total[3.0] > total[0.0]


def test_a_beam_wider_than_the_vocabulary_works() -> None:
    model, src = lively(), sources(4, 3)
    for hypotheses in beam(model, src, beam_size=3 * VOCAB, n_best=3 * VOCAB, max_len=5):
        assert len({(h.ids, h.finished) for h in hypotheses}) == 3 * VOCAB
        assert all(math.isfinite(h.score) for h in hypotheses)
    for hypotheses in beam(model, src, beam_size=3 * VOCAB, n_best=3 * VOCAB, max_len=1):
        assert len(hypotheses) == VOCAB - 1  # every token but padding: EOS, and nine cut off


def test_forced_scores_sum_the_log_probabilities_of_real_tokens() -> None:
    model, src = lively(), sources(5, 3)
    tgt_out = torch.tensor([[3, 4, EOS, PAD], [5, EOS, PAD, PAD]])
    tgt_in = torch.tensor([[BOS, 3, 4, PAD], [BOS, 5, PAD, PAD]])
    with torch.no_grad():
        log_probs = model(src, tgt_in).log_softmax(-1)
    expected = [
        (log_probs[0, 0, 3] + log_probs[0, 1, 4] + log_probs[0, 2, EOS]).item(),
        (log_probs[1, 0, 5] + log_probs[1, 1, EOS]).item(),
    ]
    assert score_targets(model, src, tgt_in, tgt_out).tolist() == pytest.approx(expected, abs=1e-12)


@pytest.mark.parametrize("n", [1, 3, 10])
@pytest.mark.parametrize("vocab_size", [12, 400, 1234, 6000])
def test_the_best_tokens_are_those_of_topk(n: int, vocab_size: int) -> None:
    log_probs = torch.randn(3, 4, vocab_size, generator=torch.Generator().manual_seed(n))
    log_probs[0, :, vocab_size // 2 :] = -torch.inf
    log_probs[1, 0, -5:] += 10.0  # in what no whole part holds
    for rows in (log_probs, log_probs[1]):
        values, ids = best_tokens(rows, n)
        expected = rows.topk(n, dim=-1)
        assert torch.equal(values, expected.values)
        assert torch.equal(ids, expected.indices)


def test_a_search_after_an_update_has_the_new_weights(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(models.linear, "_WORTH", 1)
    model, src = lively().float(), sources(4, 6)
    before = greedy(model, src)
    optimizer = torch.optim.Adam(model.parameters(), lr=0.3, fused=True)
    for parameter in model.parameters():
        parameter.grad = torch.randn_like(parameter)
    optimizer.step()
    after = greedy(model, src)
    assert after == greedy(copy.deepcopy(model), src)
    assert [h.log_prob for h in after] != [h.log_prob for h in before]
