"""Muon: its polynomial, its step against torch's and AdamW's, which weights it takes."""

import copy
from typing import Any

import pytest
import torch
from tiny_models import D_FF, D_MODEL, tiny_config, tiny_model, vocabulary
from torch import Tensor, nn

from configs.schema import (
    Config,
    Constant,
    ModelConfig,
    OptimConfig,
    Rope,
    Sinusoidal,
    TransformerXl,
)
from training.muon import HiddenMap, Muon, hidden_maps, orthogonalise
from training.prepare import build_learner
from training.schedules import build_optimizer

RATES = {"lr": 0.01, "betas": (0.9, 0.98), "eps": 1e-8}


def normal(*shape: int, seed: int = 0, dtype: torch.dtype = torch.float64) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=dtype)


def muon_of(*maps: HiddenMap, weight_decay: float = 0.1, bf16: bool = False) -> Muon:
    """Of these maps, and of one number that is AdamW's."""
    rest = nn.Parameter(normal(1, dtype=maps[0].weight.dtype))
    return Muon(list(maps), [{"params": [rest]}], **RATES, weight_decay=weight_decay, bf16=bf16)


def give_gradients(model: nn.Module, step: int) -> None:
    for n, p in enumerate(model.parameters()):
        p.grad = normal(*p.shape, seed=100 * step + n, dtype=p.dtype)


@pytest.mark.parametrize("shape", [(6, 6), (4, 9), (9, 4), (1, 5)])
def test_the_step_is_a_polynomial_of_the_singular_values_alone(shape: tuple[int, int]) -> None:
    x = normal(3, *shape)
    u, s, vh = torch.linalg.svd(x, full_matrices=False)
    s = s / s.norm(dim=-1, keepdim=True)
    for _ in range(5):
        s = 3.4445 * s - 4.7750 * s**3 + 2.0315 * s**5
    expected = u @ torch.diag_embed(s) @ vh
    torch.testing.assert_close(orthogonalise(x, x.dtype), expected, rtol=1e-9, atol=1e-12)


def test_no_gradient_moves_nothing_but_what_decays() -> None:
    weight = nn.Parameter(normal(4, 4))
    start = weight.detach().clone()
    muon = muon_of(HiddenMap(weight, 1), weight_decay=0.5)
    muon.step()  # a weight without a gradient is left alone
    assert torch.equal(weight, start)
    weight.grad = torch.zeros_like(weight)
    muon.step()
    torch.testing.assert_close(weight.detach(), start * (1 - 0.01 * 0.5), rtol=0, atol=1e-15)


@pytest.mark.parametrize(
    ("shape", "bf16"), [((48, 48), False), ((32, 96), False), ((96, 32), False), ((96, 32), True)]
)
def test_it_goes_where_torchs_muon_goes(shape: tuple[int, int], bf16: bool) -> None:
    """Torch's computes in bfloat16: the two agree to about two digits."""
    ours, theirs = (nn.Parameter(normal(*shape, dtype=torch.float32)) for _ in range(2))
    start = ours.detach().clone()
    muon = muon_of(HiddenMap(ours, 1), bf16=bf16)
    alike = {"lr": 0.01, "weight_decay": 0.1, "momentum": 0.95, "adjust_lr_fn": "match_rms_adamw"}
    other = torch.optim.Muon([theirs], **alike)
    for step in range(5):
        ours.grad = theirs.grad = normal(*shape, seed=step + 1, dtype=torch.float32)
        muon.step()
        other.step()
    moved, wanted = ours.detach() - start, theirs.detach() - start
    assert (moved - wanted).norm() / wanted.norm() < 0.02


def test_maps_in_one_weight_step_as_if_each_had_its_own() -> None:
    together = nn.Parameter(normal(12, 4))
    apart = [nn.Parameter(part.clone()) for part in together.detach().chunk(3)]
    whole = nn.Parameter(together.detach().clone())

    packed, mixed = muon_of(HiddenMap(together, 3)), muon_of(HiddenMap(whole, 1))
    single = muon_of(*(HiddenMap(p, 1) for p in apart))
    for step in range(3):
        gradient = normal(12, 4, seed=step + 1)
        together.grad, whole.grad = gradient, gradient.clone()
        for part, piece in zip(apart, gradient.chunk(3)):
            part.grad = piece.clone()
        for each in (packed, single, mixed):
            each.step()
    torch.testing.assert_close(
        together.data, torch.cat([p.data for p in apart]), rtol=0, atol=1e-14
    )
    assert not torch.allclose(together, whole, atol=1e-3)


@pytest.mark.parametrize(
    ("position", "changes"),
    [(TransformerXl(), {}), (Sinusoidal(), {"backend": "torch"}), (Sinusoidal(), {"gated": True})],
)
def test_every_map_of_a_layer_is_taken_and_nothing_else(
    position: Any, changes: dict[str, Any]
) -> None:
    """Not those of a scheme, such as Transformer-XL's W_kR."""
    model = tiny_model(position, **changes)
    maps = hidden_maps(model)
    taken = {id(weight) for weight, _ in maps}
    for name, parameter in model.named_parameters():
        inside = "layers." in name and parameter.dim() == 2
        assert (id(parameter) in taken) == inside, name
    assert len(taken) == len(maps)
    rows = {(weight.shape[0] // n, weight.shape[1]) for weight, n in maps}
    assert rows == {(D_MODEL, D_MODEL), (D_FF, D_MODEL), (D_MODEL, D_FF)}


@pytest.mark.parametrize("decay", ["all", "matrices"])
def test_the_rest_of_the_model_steps_as_with_adamw(decay: str) -> None:
    model = tiny_model(Rope())
    other = copy.deepcopy(model)
    alike: Any = {"weight_decay": 0.1, "decay": decay, "schedule": Constant(lr=0.01)}
    muon, adamw = (
        build_optimizer(
            m.parameters(), OptimConfig(optimizer=kind, **alike), ModelConfig(), hidden_maps(m)
        )
        for kind, m in (("muon", model), ("adamw", other))
    )
    assert isinstance(muon, Muon)
    assert {group["lr"] for group in muon.param_groups} == {0.01}
    for step in range(3):
        for m, optimizer in ((model, muon), (other, adamw)):
            give_gradients(m, step)
            optimizer.step()
    taken = {id(weight) for weight, _ in hidden_maps(model)}
    for (name, a), b in zip(model.named_parameters(), other.parameters()):
        assert torch.equal(a, b) == (id(a) not in taken), name


def test_only_a_training_in_bfloat16_makes_the_products_in_it() -> None:
    def updated(dtype: torch.dtype) -> Tensor:
        config = Config(model=tiny_config(), optim=OptimConfig(optimizer="muon"))
        cpu = torch.device("cpu")
        learner = build_learner(config, vocabulary(), device=cpu, dtype=dtype, total_steps=9)
        assert learner.scaler.is_enabled() == (dtype == torch.float16)
        give_gradients(learner.model, 1)
        learner.optimizer.step()
        return torch.cat([weight.detach().flatten() for weight, _ in hidden_maps(learner.model)])

    exact, rounded = updated(torch.float32), updated(torch.bfloat16)
    assert torch.equal(updated(torch.float16), exact)
    assert not torch.equal(rounded, exact)
