"""R-Drop and SimCut against their formulas in float64, and through the engine."""

from typing import Any

import pytest
import torch
import torch.nn.functional as F
from tiny_models import tiny_model
from torch import Tensor
from updates import PAD, VOCAB, VOCABULARY, batch_of, difference, sentences, small_model, updated

from configs.schema import CrossEntropy, RDrop, SimCut
from data.batching import Batch
from models.loss import token_sums
from models.transformer import TranslationTransformer
from training import objectives
from training.objectives import PairWeights, build_objective, pair_sums

DOUBLE = torch.float64
R_DROP = PairWeights((0.5, 0.5), first_from_second=1.3, second_from_first=1.3)
SIM_CUT = PairWeights((1.0, 0.0), first_from_second=3.0, second_from_first=0.0)
UNEVEN = PairWeights((0.3, 0.7), first_from_second=0.2, second_from_first=2.0)
PAIRS = {"r_drop": R_DROP, "sim_cut": SIM_CUT, "uneven": UNEVEN}
every_pair = pytest.mark.parametrize("weights", PAIRS.values(), ids=PAIRS)


def example(n: int = 7, vocab: int = 11, width: int = 5, *, scale: float = 1.0) -> list[Tensor]:
    """Hidden states of two passes [n,width], weight [vocab,width], targets [n]."""
    torch.manual_seed(0)
    first, second = (scale * torch.randn(n, width, dtype=DOUBLE) for _ in range(2))
    weight = torch.randn(vocab, width, dtype=DOUBLE)
    leaves = [x.requires_grad_() for x in (first, second, weight)]
    return [*leaves, torch.randint(0, vocab, (n,))]


def plainly(
    first: Tensor, second: Tensor, weight: Tensor, targets: Tensor, eps: float, weights: PairWeights
) -> Tensor:
    """The same objective by torch's own functions, with whole matrices."""
    log_p, log_q = (F.log_softmax(h @ weight.T, dim=-1) for h in (first, second))
    ce = [F.cross_entropy(x, targets, label_smoothing=eps, reduction="sum") for x in (log_p, log_q)]
    return (
        weights.cross_entropy[0] * ce[0]
        + weights.cross_entropy[1] * ce[1]
        + weights.first_from_second * F.kl_div(log_q, log_p, log_target=True, reduction="sum")
        + weights.second_from_first * F.kl_div(log_p, log_q, log_target=True, reduction="sum")
    )


@pytest.fixture(params=[3, 128])
def rows(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> int:
    """Rows of logits at once: fewer than there are, with a shorter last part, or all in one."""
    monkeypatch.setattr(objectives, "_ROWS_CPU", request.param)
    return request.param


# ------------------------------------------------------------------------------- the pair of passes


@every_pair
@pytest.mark.parametrize("smoothing", [0.0, 0.1])
@pytest.mark.parametrize("scale", [1.0, 20.0])
def test_the_pair_equals_the_plain_formula_with_gradients(
    weights: PairWeights, smoothing: float, scale: float, rows: int
) -> None:
    first, second, weight, targets = example(scale=scale)
    sums = pair_sums(first, second, weight, targets, label_smoothing=smoothing, weights=weights)
    expected = plainly(first, second, weight, targets, smoothing, weights)
    torch.testing.assert_close(sums.objective, expected, rtol=1e-12, atol=1e-12)
    for factor in (1.0, -0.3):
        ours, theirs = (
            torch.autograd.grad(total * factor, (first, second, weight), retain_graph=True)
            for total in (sums.objective, expected)
        )
        torch.testing.assert_close(ours, theirs, rtol=1e-11, atol=1e-10)


def test_equal_passes_add_exactly_nothing(rows: int) -> None:
    first, _, weight, targets = example()
    second = first.detach().clone().requires_grad_()
    found = []
    for alpha in (0.0, 1e6):
        weights = PairWeights((0.5, 0.5), first_from_second=alpha, second_from_first=alpha)
        sums = pair_sums(first, second, weight, targets, label_smoothing=0.1, weights=weights)
        objective = sums.objective
        found.append((objective, *torch.autograd.grad(objective, (first, second, weight))))
    assert all(torch.equal(a, b) for a, b in zip(*found))


@every_pair
def test_the_pairs_figures_are_those_of_its_passes(weights: PairWeights, rows: int) -> None:
    first, second, weight, targets = example()
    sums = pair_sums(first, second, weight, targets, label_smoothing=0.3, weights=weights)
    a, b = (token_sums(h, weight, targets, label_smoothing=0.0) for h in (first, second))
    one, two = weights.cross_entropy
    assert sums.nll.item() == pytest.approx(one * a.nll.item() + two * b.nll.item(), rel=1e-12)
    hits = one * a.n_correct.item() + two * b.n_correct.item()
    assert sums.n_correct.item() == pytest.approx(hits)
    assert not sums.nll.requires_grad
    assert not sums.n_correct.requires_grad


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_under_autocast_the_pair_is_near_the_exact_one_in_float32(dtype: torch.dtype) -> None:
    first, second, weight, targets = example(300, 17)
    short = [x.detach().float().requires_grad_() for x in (first, second, weight)]
    with torch.autocast("cpu", dtype=dtype):
        sums = pair_sums(*short, targets, label_smoothing=0.1, weights=R_DROP)
    exact = plainly(first, second, weight, targets, 0.1, R_DROP)
    assert sums.objective.dtype == sums.nll.dtype == torch.float32
    assert sums.objective.item() == pytest.approx(exact.item(), rel=2e-3)
    gradients = torch.autograd.grad(exact, (first, second, weight))
    for ours, theirs in zip(torch.autograd.grad(sums.objective, short), gradients):
        assert ours.dtype == torch.float32
        assert (ours - theirs).norm() < 0.02 * theirs.norm()


# ----------------------------------------------------------------------------------- the objectives


class Recorder(torch.nn.Module):
    """A model that notes how it was called and what it answered."""

    def __init__(self, model: TranslationTransformer) -> None:
        super().__init__()
        self.model = model
        self.calls: list[dict[str, Any]] = []

    def forward(self, src: Tensor, tgt_in: Tensor, **options: Any) -> Tensor:
        hidden = self.model(src, tgt_in, **options)
        self.calls.append({"src": src, "tgt_in": tgt_in, "hidden": hidden, **options})
        return hidden


def called(objective: Any, **changes: Any) -> tuple[TranslationTransformer, Batch, dict, Any]:
    """A random model in training mode, a batch, its one call by the objective, and the sums."""
    model = tiny_model(vocab=VOCABULARY, **changes).train()
    batch = batch_of(sentences(5, seed=1), range(5))
    recorder = Recorder(model)
    torch.manual_seed(3)
    sums = build_objective(objective)(recorder, batch, model.output.weight, 0.1)
    [call] = recorder.calls
    return model, batch, call, sums


def of_two_passes(model: TranslationTransformer, batch: Batch, call: dict) -> tuple[Tensor, ...]:
    """Targets [n], and of each pass the hidden states [n,D] and log-probabilities [n,V]."""
    targets = batch.tgt_out[batch.tgt_out != PAD]
    passes = call["hidden"].view(2, len(targets), -1)
    return targets, *passes, *(passes @ model.output.weight.T).log_softmax(-1)


def test_cross_entropy_is_one_pass_over_the_batch() -> None:
    model, batch, call, sums = called(CrossEntropy())
    assert call["src"] is batch.src
    assert set(call) == {"src", "tgt_in", "hidden", "select", "project"}
    targets = batch.tgt_out[batch.tgt_out != PAD]
    expected = token_sums(call["hidden"], model.output.weight, targets, label_smoothing=0.1)
    assert torch.equal(sums.objective, expected.objective)


def test_r_drop_is_half_the_papers_equation_4() -> None:
    model, batch, call, sums = called(RDrop(alpha=5.0), dropout=0.3)
    assert torch.equal(call["src"], torch.cat((batch.src, batch.src)))
    assert torch.equal(call["tgt_in"], torch.cat((batch.tgt_in, batch.tgt_in)))
    targets, first, second, log_p, log_q = of_two_passes(model, batch, call)
    assert (first - second).abs().max() > 1e-2  # dropout of its own
    smooth: Any = {"label_smoothing": 0.1, "reduction": "sum"}
    ce = sum(F.cross_entropy(x, targets, **smooth) for x in (log_p, log_q))
    kl = (log_p.exp() * (log_p - log_q)).sum() + (log_q.exp() * (log_q - log_p)).sum()
    paper = ce + 5.0 * kl / 2
    assert sums.objective.item() == pytest.approx(paper.item() / 2, rel=1e-10)
    assert kl > 1e-2


def test_sim_cut_compares_the_whole_pass_with_one_without_some_embeddings() -> None:
    model, batch, call, sums = called(SimCut(alpha=3.0, cut=0.4))
    for keep in call["keep"]:
        whole_pass, cut_pass = keep.chunk(2)
        assert whole_pass.all()
        assert 0.3 < cut_pass.double().mean() < 0.9
    targets, whole, _, log_p, log_q = of_two_passes(model, batch, call)
    plain = model(batch.src, batch.tgt_in, select=batch.flat, project=False)
    torch.testing.assert_close(whole, plain)
    ce = F.cross_entropy(log_p, targets, label_smoothing=0.1, reduction="sum")
    kl = (log_p.exp() * (log_p - log_q)).sum()
    assert kl > 1e-2
    assert sums.objective.item() == pytest.approx((ce + 3.0 * kl).item(), rel=1e-10)
    nll = F.cross_entropy(log_p, targets, reduction="sum")
    assert sums.nll.item() == pytest.approx(nll.item(), rel=1e-10)


@pytest.mark.parametrize("objective", [RDrop(alpha=1e3), SimCut(cut=0.0)], ids=str)
def test_passes_that_do_not_differ_are_the_cross_entropy(objective: Any) -> None:
    """R-Drop without dropout, and SimCut that cuts nothing."""
    group = [[batch_of(sentences(6, seed=2), range(6))]]
    plain, out = updated(group, label_smoothing=0.1)
    model, other = updated(group, label_smoothing=0.1, objective=objective)
    assert difference(plain, model) < 1e-12
    assert other["nll"] == pytest.approx(out["nll"], rel=1e-12)
    assert other["n_correct"] == out["n_correct"]
    assert other["grad_norm"] == pytest.approx(out["grad_norm"], rel=1e-10)
    cut, _ = updated(group, label_smoothing=0.1, objective=SimCut(cut=0.5))
    assert difference(plain, cut) > 1e-4


def test_a_cut_token_leaves_its_position_and_takes_its_embedding() -> None:
    model = tiny_model(vocab=VOCABULARY)
    batch = batch_of(sentences(2, seed=4), range(2))
    src, tgt_in, rare = batch.src.clamp(max=VOCAB - 2), batch.tgt_in, VOCAB - 1
    src[0, 0] = rare  # nowhere else
    keep = torch.ones_like(src, dtype=torch.bool), torch.ones_like(tgt_in, dtype=torch.bool)
    with torch.no_grad():
        torch.testing.assert_close(model(src, tgt_in, keep=keep), model(src, tgt_in))
        keep[0][0, 0] = False
        cut = model(src, tgt_in, keep=keep)
        assert (cut[0] - model(src, tgt_in)[0]).abs().max() > 1e-2
        model.src_embedding.weight[rare] = 0.0
        torch.testing.assert_close(model(src, tgt_in), cut)


@pytest.mark.parametrize("objective", [CrossEntropy(), RDrop(), SimCut(cut=0.0)])
def test_objectives_add_up_over_micro_batches(objective: Any) -> None:
    """Parts of different size and padding, one without a row: one division by the tokens of all."""
    split = sentences(12, seed=1)
    parts = [range(1), range(1, 7), range(0), range(7, 12)]
    whole, one = updated([[batch_of(split, range(12))]], objective=objective)
    several, four = updated([[batch_of(split, part) for part in parts]], objective=objective)
    assert difference(whole, small_model()) > 1e-3
    assert difference(whole, several) < 1e-12
    assert four["n_tokens"] == one["n_tokens"] == len(split.tgt_ids)
    assert four["nll"] == pytest.approx(one["nll"], rel=1e-12)
