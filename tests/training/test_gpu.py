"""A GPU computes what a CPU computes, and is not waited for."""

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from tiny_models import LIMITS, POSITIONS, VOCAB, tiny_model
from torch import Tensor
from toy_runs import log_of, run_here, toy_config
from updates import CPU, VOCABULARY, batch_of, plain_update, sentences

from configs.schema import (
    Constant,
    CrossEntropy,
    DecodeConfig,
    ModelConfig,
    OptimConfig,
    Sinusoidal,
)
from configs.serialize import apply_overrides
from data.batching import Batch
from models.build import build_model
from models.decoding.beam import beam_search
from models.decoding.stepwise import greedy_search
from models.loss import TokenSums, token_sums
from training.graphs import GraphedPasses
from training.objectives import build_objective
from training.schedules import build_optimizer
from translation.evaluator import create_evaluator
from translation.search import BatchSearch
from utils.errors import UserError
from utils.machine import autocast, resolve_device

pytestmark = pytest.mark.gpu

GPU = "cuda"
OPTIM = OptimConfig(schedule=Constant(lr=1e-3), grad_clip=1.0)
DRAWN = ("randomized", "shape")  # each device draws other positions


def losses(
    name: str,
    device: torch.device,
    dtype: torch.dtype = torch.float32,
    *,
    dropout: float = 0.0,
    graphs: bool = False,
) -> Tensor:
    """Of 20 updates of a scheme's model, each a mean over the target tokens."""
    config = ModelConfig(position=POSITIONS[name], d_model=32, n_heads=2, d_ff=64, dropout=dropout)
    torch.manual_seed(0)
    model = build_model(config, VOCABULARY).to(device).train()
    optimizer = build_optimizer(model.parameters(), OPTIM, config)
    split, found = sentences(24, seed=1), []

    def compute(batch: Batch, factor: Tensor) -> TokenSums:
        batch = batch.to(device)
        with autocast(device, dtype):
            sums = build_objective(CrossEntropy())(model, batch, model.output_weight(), 0.1)
        (sums.objective * factor).backward()
        return sums

    passes = GraphedPasses(compute, device) if graphs else None
    batches = [batch_of(split, range(i, i + 6)) for i in range(0, 24, 6)]
    for number, batch in enumerate(batches * 5):
        torch.manual_seed(number)
        if passes is None:
            sums = plain_update(model, optimizer, batch.to(device), dtype)
        else:
            sums = passes(batch, 1 / batch.n_tokens)
            torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            optimizer.zero_grad(set_to_none=False)
        found.append(sums.nll.double() / batch.n_tokens)
    assert passes is None or len(passes.captured) == 4  # graphs, of as many shapes
    return torch.stack(found).cpu()


@pytest.mark.parametrize("name", [n for n in POSITIONS if not any(d in n for d in DRAWN)])
def test_updates_lose_what_they_lose_on_a_cpu(name: str) -> None:
    expected = losses(name, CPU)
    torch.testing.assert_close(losses(name, resolve_device(GPU)), expected, rtol=1e-3, atol=0)
    bf16 = losses(name, resolve_device(GPU), torch.bfloat16)
    torch.testing.assert_close(bf16, expected, rtol=3e-2, atol=0)


@pytest.mark.parametrize("name", [n for n in POSITIONS if "randomized" not in n])
def test_captured_passes_lose_what_others_lose(name: str) -> None:
    """With dropout, which the graphs draw as the passes that they were captured from."""
    for dtype, tolerance in ((torch.float32, 1e-3), (torch.bfloat16, 1e-2)):
        expected, found = (
            losses(name, resolve_device(GPU), dtype, dropout=0.1, graphs=graphs)
            for graphs in (False, True)
        )
        torch.testing.assert_close(found, expected, rtol=tolerance, atol=0)


@pytest.mark.parametrize(
    "more",
    [
        "optim.accumulate=2 optim.optimizer=muon train.ema_decay=0.9",
        "train.precision=fp16 train.deterministic=true",
        "optim.objective=r_drop",
        "optim.objective=sim_cut",
    ],
)
def test_a_run_of_graphs_loses_what_others_lose_and_goes_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, more: str
) -> None:
    config = toy_config(tmp_path, f"train.device={GPU} train.max_epochs=4 {more}")
    graphs = apply_overrides(config, ["train.cuda_graphs=true"])
    capture, captured = GraphedPasses._capture, []

    def note(passes: GraphedPasses, batch: Batch) -> Any:
        captured.append(capture(passes, batch))
        return captured[-1]

    monkeypatch.setattr(GraphedPasses, "_capture", note)
    try:
        expected = log_of(run_here(config).run)
        stopped = run_here(apply_overrides(graphs, [f"train.max_steps={len(expected) // 4}"])).run
        captured.clear()
        found = log_of(run_here(graphs, resume=stopped.path).run)
    finally:
        torch.use_deterministic_algorithms(False)
    assert len(captured) > 1
    assert sorted(found) == sorted(expected)
    for step, line in expected.items():
        assert found[step]["loss"] == pytest.approx(line["loss"], rel=1e-2)
        assert found[step]["grad_norm"] == pytest.approx(line["grad_norm"], rel=5e-2)


@pytest.mark.parametrize("name", POSITIONS)
def test_searches_find_what_they_find_on_a_cpu(name: str) -> None:
    model = tiny_model(POSITIONS[name])
    src = torch.randint(2, VOCAB - 1, (7, 6), generator=torch.Generator().manual_seed(3))
    src[:, -1] = LIMITS.eos_id

    def found(device: torch.device) -> list[list[tuple[int, ...]]]:
        there, ids = model.to(device), src.to(device)
        searched = greedy_search(there, ids, LIMITS)
        searched += beam_search(there, ids, LIMITS, beam_size=3, n_best=3)
        return [[hypothesis.ids for hypothesis in n_best] for n_best in searched]

    assert found(resolve_device(GPU)) == found(CPU)


@pytest.mark.parametrize("vocab_size", [59_514, 53_017])
@pytest.mark.parametrize(
    ("dtype", "tolerance"), [(torch.float32, 1e-5), (torch.float16, 2e-3), (torch.bfloat16, 1e-2)]
)
def test_the_loss_of_a_vocabulary_of_no_round_size(
    vocab_size: int, dtype: torch.dtype, tolerance: float
) -> None:
    """Loss and gradients in one precision beside float64, relative to the largest."""
    torch.manual_seed(0)
    hidden, weight = torch.randn(300, 64), 0.1 * torch.randn(vocab_size, 64)
    targets = torch.randint(vocab_size, (300,))

    def compute(device: torch.device, dtype: torch.dtype, exact: torch.dtype) -> list[Tensor]:
        inputs = [x.to(device, exact).requires_grad_() for x in (hidden, weight)]
        with autocast(device, dtype):
            sums = token_sums(*inputs, targets.to(device), label_smoothing=0.1)
        (sums.objective / len(targets)).backward()
        return [x.detach().cpu().double() for x in (sums.nll, *(x.grad for x in inputs))]

    expected = compute(CPU, torch.float64, torch.float64)
    for found, exactly in zip(compute(resolve_device(GPU), dtype, torch.float32), expected):
        assert (found - exactly).abs().max() < tolerance * exactly.abs().max()


def test_an_update_waits_for_nothing_on_the_device() -> None:
    """What test_launches.py counts on a CPU: here CUDA itself raises where it is waited for."""
    device = resolve_device(GPU)
    config = ModelConfig(position=Sinusoidal(), d_model=32, n_heads=2, d_ff=64)
    model = build_model(config, VOCABULARY).to(device).train()
    optimizer = build_optimizer(model.parameters(), OPTIM, config)
    batch = batch_of(sentences(6, seed=1), range(6)).to(device)
    plain_update(model, optimizer, batch, torch.bfloat16)  # makes what all others use
    torch.cuda.set_sync_debug_mode("error")
    try:
        plain_update(model, optimizer, batch, torch.bfloat16)
    finally:
        torch.cuda.set_sync_debug_mode("default")


@pytest.mark.parametrize("devices", [(GPU, "cpu"), ("cpu", GPU)])
def test_a_run_goes_on_where_another_device_began_it(
    tmp_path: Path, devices: tuple[str, str]
) -> None:
    config = toy_config(tmp_path, "train.precision=fp32 model.dropout=0 train.max_steps=10")
    whole = log_of(run_here(apply_overrides(config, ["train.device=cpu"])).run)
    first, second = (f"train.device={device}" for device in devices)
    begun = run_here(apply_overrides(config, [first, "train.max_steps=5"])).run
    gone_on = log_of(run_here(apply_overrides(config, [second]), resume=begun.path).run)
    assert sorted(gone_on) == sorted(whole)
    for step, line in whole.items():
        assert gone_on[step]["loss"] == pytest.approx(line["loss"], rel=1e-3)


@pytest.mark.parametrize("precision", ["fp32", "bf16", "fp16"])
def test_a_compiled_run_loses_what_an_eager_one_loses(tmp_path: Path, precision: str) -> None:
    config = toy_config(
        tmp_path,
        f"train.device={GPU} train.precision={precision} model.dropout=0 train.max_steps=20",
    )
    eager = log_of(run_here(config).run)
    try:
        compiled = log_of(run_here(apply_overrides(config, ["train.compile=true"])).run)
    finally:
        torch._dynamo.reset()
    assert sorted(compiled) == sorted(eager)
    tolerance = 1e-3 if precision == "fp32" else 3e-2
    for step, line in eager.items():
        assert compiled[step]["loss"] == pytest.approx(line["loss"], rel=tolerance)


@pytest.fixture
def room() -> Iterator[Callable[[int], None]]:
    """Leaves so many megabytes of the GPU's memory to what comes."""

    def leave(megabytes: int) -> None:
        torch.cuda.empty_cache()
        limit = torch.cuda.memory_reserved() + megabytes * 2**20
        total = torch.cuda.get_device_properties(0).total_memory
        torch.cuda.set_per_process_memory_fraction(limit / total)

    yield leave
    torch.cuda.set_per_process_memory_fraction(1.0)


def test_a_training_that_does_not_fit_ends_before_its_first_update(
    tmp_path: Path, room: Callable[[int], None]
) -> None:
    room(64)  # the weights take 30, and the optimizer twice as many
    wide = f"train.device={GPU} model.d_model=512 model.d_ff=2048"
    with pytest.raises(UserError, match=r"^not enough memory to train \(.*\): use --set"):
        run_here(toy_config(tmp_path, wide))
    assert not list(tmp_path.glob("runs/toy_*"))


def test_search_and_evaluation_go_on_with_what_fits(
    room: Callable[[int], None], caplog: pytest.LogCaptureFixture
) -> None:
    device, config = resolve_device(GPU), ModelConfig(d_model=64, n_heads=2, d_ff=64, dropout=0.0)
    torch.manual_seed(0)
    model = build_model(config, VOCABULARY).double().eval().to(device)
    split = sentences(4000, seed=1)
    decode = DecodeConfig(batch_size=4000, beam_size=5, max_len=20)

    def found() -> tuple[list[tuple[int, ...]], dict[str, float]]:
        searcher = BatchSearch(model, VOCABULARY, device)
        ids = [split.src(i).tolist() for i in range(4000)]
        hypotheses = searcher.search_ids(ids, decode, greedy=False)
        evaluator = create_evaluator(
            model, pad_id=VOCABULARY.pad_id, device=device, dtype=torch.float64
        )
        metrics = evaluator.run([batch_of(split, range(4000))]).metrics
        return [n_best[0].ids for n_best in hypotheses], dict(metrics)

    expected, metrics = found()
    assert not caplog.messages
    room(64)
    fitting, of_parts = found()
    assert fitting == expected
    assert of_parts == {name: pytest.approx(value) for name, value in metrics.items()}
    said = "\n".join(caplog.messages)
    for part in ("for 4000 sentences", "to evaluate 4000 pairs"):
        assert f"not enough memory {part}" in said
