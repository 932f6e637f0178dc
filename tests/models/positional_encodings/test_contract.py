"""What every position scheme must hold, each property once: real attentions over small schemes.

One attention of each stack stands for a model; whole models are in tests/models/test_model.py.
"""

from __future__ import annotations

import copy
import math
import re
from dataclasses import fields, replace
from functools import cache
from typing import Any, get_args

import pytest
import torch
from references import catches, loud, normal
from tiny_models import (
    D_MODEL,
    N_HEADS,
    POSITIONS as TINY,
    close,
    model_with,
    shared_model,
    sources,
    targets,
    tiny_config,
    tiny_model,
)
from torch import Tensor, nn

from configs import positions as config
from configs.load import load_config
from configs.position_names import POSITIONS
from configs.schema import ModelConfig
from configs.section import members
from configs.serialize import apply_overrides, from_dict, to_dict
from models.attention.multi_head import SelfAttention
from models.attention.tap import AttentionTap
from models.build import build_scheme
from models.decode_state import KeyValueCache
from models.positional_encodings.base import AttentionScheme, Kind, Places, PositionScheme
from models.positional_encodings.randomized import draw_positions
from models.schemes import POSITION_SCHEMES
from models.transformer import TranslationTransformer
from utils.errors import ConfigError, UserError

KINDS: tuple[Kind, ...] = ("encoder", "decoder")
N = 9
X = normal(2, N, D_MODEL)
AT = torch.arange(N)
GAPS = torch.tensor([0, 2, 3, 4, 8, 12, 13, 20, 21])
every_scheme = pytest.mark.parametrize("name", TINY)
every_stack = pytest.mark.parametrize("kind", KINDS)

# Not a function of the distance alone: absolute, or past a length that it interpolates from.
ABSOLUTE = {"sinusoidal", "sinusoidal_half", "sinusoidal_t2t", "learnable", "fire"}
ABSOLUTE |= {"shape", "shape_learnable", "tupe", "tupe_r", "fope"}
ABSOLUTE |= {"rope_dynamic_ntk", "sinusoidal_t5", "learnable_shaw", "ssmax_learnable_shaw"}
SYMMETRIC = {"none", "alibi", "ssmax_alibi", "kerple_log", "kerple_power", "sandwich", "dape"}
# Blind to order, but for the causal mask of a second layer.
UNORDERED = {"none", "repo_alone"}
SYMMETRIC |= UNORDERED


def scheme_of(name: str, seed: int = 0) -> PositionScheme:
    torch.manual_seed(seed)
    return loud(build_scheme(tiny_config(TINY[name])), least_dim=2)


@cache
def attention_of(kind: Kind, dtype: torch.dtype = torch.float64) -> SelfAttention:
    torch.manual_seed(1)
    return SelfAttention(tiny_config(), kind=kind, layer=0).to(dtype).requires_grad_(False)


def run(
    scheme: PositionScheme,
    kind: Kind,
    x: Tensor = X,
    at: Tensor = AT,
    layer: int = 0,
    tap: AttentionTap | None = None,
) -> Tensor:
    """One self-attention over x [B,T,D] at the given positions, with what is added to x before."""
    x = scheme.input("source" if kind == "encoder" else "target")(x, at)
    position, places = scheme.attention(kind, layer), Places(at, at, causal=kind == "decoder")
    return attention_of(kind, x.dtype)(x, position=position, places=places, tap=tap)


def apart(a: Tensor, b: Tensor) -> float:
    return (a - b).abs().max().item()


# ------------------------------------------------------------------------------------- what it sees


def test_every_section_and_name_is_held_to_the_contract() -> None:
    tried = {type(position) for position in TINY.values()}
    assert tried == set(POSITION_SCHEMES) == set(members(config.Position))


def test_a_section_that_no_module_is_joined_to_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delitem(POSITION_SCHEMES, config.Alibi)
    with pytest.raises(ConfigError, match=r"^model\.position = 'alibi': no module is joined to it"):
        build_scheme(tiny_config(config.Alibi()))


@every_scheme
def test_a_common_shift_changes_nothing_where_distances_are_all(name: str) -> None:
    scheme = scheme_of(name)
    for kind in KINDS:
        absolute = name in ABSOLUTE or (name, kind) == ("fox_learnable", "encoder")
        for shift in (1, 13) if absolute else (1, 14, 1000):
            difference = apart(run(scheme, kind, at=AT + shift), run(scheme, kind))
            assert difference > 1e-4 if absolute else difference < 1e-9, (kind, shift)


@every_scheme
def test_the_order_of_the_past_matters(name: str) -> None:
    scheme, swapped = scheme_of(name), X[:, [*range(N - 3), N - 2, N - 3, N - 1]]
    for kind in KINDS:
        difference = apart(run(scheme, kind)[:, -1], run(scheme, kind, swapped)[:, -1])
        assert difference < 1e-12 if name in UNORDERED else difference > 1e-5, kind


@every_scheme
def test_an_encoder_tells_past_from_future_unless_it_is_symmetric(name: str) -> None:
    scheme = scheme_of(name)
    difference = apart(run(scheme, "encoder", X.flip(1)).flip(1), run(scheme, "encoder"))
    assert difference < 1e-12 if name in SYMMETRIC else difference > 1e-5


@every_scheme
def test_cached_steps_and_chunks_are_the_whole(name: str) -> None:
    scheme, attention, at = scheme_of(name), attention_of("decoder"), GAPS
    position, x = scheme.attention("decoder", 0), scheme.input("target")(X, at)
    expected = run(scheme, "decoder", at=at)
    for size in (1, 2, 4):
        width = position.widening * D_MODEL // N_HEADS
        cache = KeyValueCache(2, 1, N_HEADS, N, width, like=X)
        for start in range(0, N, size):
            end = min(start + size, N)
            places = Places(at[start:end], at[:end], causal=True, newest=size == 1)
            new = x[:, start:end]
            qkv = attention.qkv_proj(new).unflatten(-1, (3, N_HEADS, -1))
            cache.grow(end - start)
            state = position.token_state(new, cache.last_state(0, end - start))
            q, k, v = position.rotate_heads(qkv, places, state)
            k, v, state = cache.put(0, k, v, state)
            out = attention.attend(q, k, v, position=position, places=places, state=state)
            close(attention.out_proj(out), expected[:, start:end])


@every_scheme
def test_calls_leave_no_trace(name: str) -> None:
    scheme = scheme_of(name)
    before = copy.deepcopy([*scheme.parameters(), *scheme.buffers()])
    first = [run(scheme, kind) for kind in KINDS]
    for kind in KINDS:
        run(scheme, kind, normal(2, 23, D_MODEL), torch.arange(23))
    assert all(torch.equal(run(scheme, kind), out) for kind, out in zip(KINDS, first))
    after = [*scheme.parameters(), *scheme.buffers()]
    assert all(torch.equal(a, b) for a, b in zip(before, after, strict=True))


@pytest.mark.parametrize("name", ["rope_dynamic_ntk", "transformer_xl", "deberta", "cope"])
def test_the_layers_of_a_stack_share_what_their_places_decide(name: str) -> None:
    scheme, places, q = scheme_of(name), Places(AT, AT, causal=True), normal(1, N_HEADS, N, 8)
    made = []
    for layer in (0, 1):
        scheme.attention("decoder", layer).logit_term(q, q, places, None)
        made.append(set(places._made) - {"distance", *(["countable"] if name != "cope" else [])})
    assert made[0] == made[1]
    assert made[0]


# ------------------------------------------------------------------------------------------ kernels


@every_stack
@every_scheme
def test_the_fast_kernel_is_the_eager_one_with_gradients(name: str, kind: Kind) -> None:
    results = []
    for tap in (None, AttentionTap()):
        scheme, x = scheme_of(name), X.clone().requires_grad_()
        out = run(scheme, kind, x, tap=tap)
        leaves = [x, *scheme.parameters()]
        weight = normal(*out.shape, seed=5)
        gradients = torch.autograd.grad((out * weight).sum(), leaves, materialize_grads=True)
        results.append((out, *gradients))
    for fast, eager in zip(*results, strict=True):
        close(fast, eager)


@every_stack
@every_scheme
def test_under_autocast_it_stays_near_full_precision_and_trains(name: str, kind: Kind) -> None:
    """bfloat16 products, float32 parameters: what a GPU run does, in small."""
    scheme = scheme_of(name).float()
    x = X.float().requires_grad_()
    exact = run(scheme, kind, x)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        half = run(scheme, kind, x)
    assert apart(half.float(), exact) < 0.1 * exact.abs().max()
    half.float().square().sum().backward()
    gradients = [x.grad, *(p.grad for p in scheme.parameters() if p.grad is not None)]
    assert all(g.dtype == torch.float32 and g.isfinite().all() for g in gradients)
    bfloat16 = run(scheme.bfloat16(), kind, X.bfloat16())
    assert bfloat16.dtype == torch.bfloat16
    assert apart(bfloat16.double(), exact.double()) < 0.2 * exact.abs().max()


@every_scheme
def test_terms_are_finite_where_the_mask_forbids(name: str) -> None:
    scheme, at, q = scheme_of(name), torch.arange(40), normal(1, N_HEADS, 40, 8)
    for kind in KINDS:
        module, causal = scheme.attention(kind, 0), kind == "decoder"
        state = module.token_state(30 * normal(1, 40, D_MODEL))
        term = module.logit_term(q, q, Places(at, at, causal=causal), state)
        bias = module.bias(Places(at[:24], at[:24], causal=causal))  # as long as the tables
        assert term is None or term.expand(1, N_HEADS, 40, 40).isfinite().all(), kind
        assert bias is None or bias.expand(1, N_HEADS, 24, 24).isfinite().all(), kind


# --------------------------------------------------------------------------------------- parameters

# Trained numbers at H = 8, d_model = 512: of a stack, and of a layer.
COUNTS = dict.fromkeys(POSITIONS, (0, 0)) | {
    "learnable": (512 * 512, 0),
    "rope_learned": (0, 8 * 32),
    "selective_rope": (0, 16 * (512 + 256) + 256),
    "repo": (-66_048, 2 * 512 * 64 + 64 * 8),  # the first layer has none
    "pope": (0, 512),
    "ssmax": (0, 8),
    "t5": (32 * 8, 0),
    "sinusoidal_t5": (32 * 8, 0),
    "kerple_log": (2 * 8, 0),
    "kerple_power": (2 * 8, 0),
    "fire": (330, 0),
    "shaw": (0, 2 * 33 * 64),
    "transformer_xl": (2 * 512, 512 * 512),
    "xlnet": (0, 263_168),
    "deberta": (128 * 512, 2 * 512 * 512),
    "deberta_log": (64 * 512, 2 * 512 * 512),
    "tupe": (512 * 512 + 2 * 512 + 2 * 512 * 512, 0),
    "tupe_r": (512 * 512 + 2 * 512 + 2 * 512 * 512 + 32 * 8, 0),
    "dape": (0, 2 * 8 + 32 * (2 * 8 + 1) + 8 * 32),
}
DECODER_ALONE = {"cope": 64 * 64, "fox": 512 * 8 + 8}


@pytest.mark.parametrize("n_layers", [2, 6])
@pytest.mark.parametrize("name", POSITIONS)
def test_a_scheme_has_as_many_parameters_as_its_formula(name: str, n_layers: int) -> None:
    layers = {"n_encoder_layers": n_layers, "n_decoder_layers": n_layers}
    with torch.device("meta"):
        scheme = build_scheme(ModelConfig(position=POSITIONS[name], **layers))
    of_a_stack, of_a_layer = COUNTS[name]
    expected = 2 * (of_a_stack + n_layers * of_a_layer) + n_layers * DECODER_ALONE.get(name, 0)
    assert sum(p.numel() for p in scheme.parameters()) == expected


@every_scheme
def test_a_state_dict_holds_the_parameters_alone_and_makes_a_twin(name: str) -> None:
    scheme, other = scheme_of(name), scheme_of(name, seed=5)
    assert list(scheme.state_dict()) == [key for key, _ in scheme.named_parameters()]
    other.load_state_dict(scheme.state_dict())
    assigned = scheme_of(name, seed=6)
    assigned.load_state_dict(copy.deepcopy(scheme.state_dict()), assign=True)
    twin = copy.deepcopy(scheme)
    before = [run(scheme, kind, layer=1) for kind in KINDS]
    for same in (other, assigned, twin):
        assert all(torch.equal(run(same, kind, layer=1), out) for kind, out in zip(KINDS, before))
    with torch.no_grad():
        for parameter in twin.parameters():
            parameter.mul_(3)
    for kind, out in zip(KINDS, before):
        assert torch.equal(run(scheme, kind, layer=1), out)


@pytest.mark.parametrize("name", [name for name in TINY if [*scheme_of(name).parameters()]])
def test_each_parameter_serves_its_stack_or_its_layer_and_is_trained(name: str) -> None:
    scheme, everywhere = scheme_of(name), [(kind, layer) for kind in KINDS for layer in (0, 1)]
    before = [run(scheme, kind, layer=layer) for kind, layer in everywhere]
    sum(out.square().sum() for out in before).backward()
    keys = set(scheme.state_dict())
    for key, parameter in scheme.named_parameters():
        if name == "fire" and key.endswith(".bias"):  # one of them a softmax does not see
            continue
        assert parameter.grad is not None
        assert parameter.grad.isfinite().all()
        assert parameter.grad.abs().max() > 1e-9, key
        saved = parameter.detach().clone()
        with torch.no_grad():
            parameter.add_(normal(*parameter.shape, seed=7))
            after = [run(scheme, kind, layer=layer) for kind, layer in everywhere]
            parameter.copy_(saved)
        side = re.findall("encoder|source|decoder|target", key)[0]
        kind = "encoder" if side in ("encoder", "source") else "decoder"
        number = re.search(r"\.([01])\.", key)
        alone = number is not None and key.replace(number[0], f".{1 - int(number[1])}.") in keys
        layers = [int(number[1])] if number and alone else [0, 1]
        if "interleaved" in name:
            layers = [1] if key.startswith("nth.") else [0]
        if name == "repo":
            layers = [1]
        changed = [place for place, a, b in zip(everywhere, before, after) if apart(a, b) > 1e-7]
        assert changed == [(kind, layer) for layer in layers], key


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("learnable", {"source.table.weight", "target.table.weight"}),
        ("rope_learned", {"encoder.1.log_theta", "decoder.0.log_theta"}),
        ("selective_rope", {"encoder.1.down.weight", "decoder.0.up.weight", "decoder.1.up.bias"}),
        ("repo", {"encoder.1.gate.weight", "decoder.1.content.weight", "decoder.1.place.weight"}),
        ("pope", {"encoder.1.delta", "decoder.0.delta"}),
        ("t5", {"encoder.0.table", "decoder.0.table"}),
        ("transformer_xl", {"encoder_biases.u", "decoder_biases.v", "decoder.1.w_kr.weight"}),
        ("xlnet", {"encoder.0.own_biases.u", "decoder.1.own_biases.v", "encoder.1.w_kr.weight"}),
        ("deberta", {"encoder_table.weight", "decoder_table.weight", "encoder.1.w_qr.weight"}),
        ("tupe_r", {"encoder.0.table.weight", "decoder.0.u_k.weight", "encoder.0.relative.table"}),
        ("dape", {"encoder.0.inner.p", "decoder.1.hidden.bias", "encoder.1.out.weight"}),
        ("cope", {"decoder.decoder.1.table"}),
        ("ssmax_alibi", {"encoder.0.s", "decoder.1.s"}),
        ("learnable_shaw", {"on_input.target.table.weight", "inside.encoder.1.value_table"}),
        ("randomized_t5", {"inner.decoder.0.table"}),
    ],
)
def test_parameters_keep_the_names_of_saved_checkpoints(name: str, expected: set[str]) -> None:
    assert expected <= set(scheme_of(name).state_dict())


# ----------------------------------------------------------------------------------- configurations

BOTH, ENCODER, DECODER = set(KINDS), {"encoder"}, {"decoder"}
YARN = config.YarnScaling(factor=2.0, trained_length=2000)
DYNAMIC = config.DynamicNtkScaling(factor=2.0, trained_length=4)
T5 = config.T5(n_buckets=8, max_distance=9)
DEBERTA = config.Deberta(max_distance=6)
LOG = config.Deberta(max_distance=6, log_buckets=4)
# A section, changes to it, and the stacks where each must be seen.
CHANGES: list[tuple[Any, dict[str, Any], set[str]]] = [
    (config.Sinusoidal(), {"base": 50.0, "layout": "half"}, BOTH),
    (config.Learnable(max_positions=24), {"max_positions": 25}, BOTH),
    (config.Shape(), {"input": config.Sinusoidal(layout="half")}, BOTH),
    (config.Rope(), {"base": 50.0, "layout": "half", "rope_dim": "model"}, BOTH),
    (config.Rope(), {"share": 0.5, "clipped": 0.75, "learn_frequencies": True}, BOTH),
    (config.Rope(scaling=YARN), {"base": 50.0, "layout": "half"}, BOTH),
    (config.Rope(scaling=DYNAMIC), {"base": 50.0, "layout": "half"}, BOTH),
    (config.SelectiveRope(), {"base": 50.0, "rank": 3}, BOTH),
    (config.Repo(), {"base": 50.0, "rope_layers": 0}, BOTH),
    (config.Repo(rope_layers=0), {"width": 5}, BOTH),
    (config.Pope(), {"base": 50.0}, BOTH),
    (config.Fope(), {"base": 50.0, "trained_length": 20, "sigma": 0.6}, BOTH),
    (config.XPos(), {"base": 50.0}, BOTH),
    (config.XPos(), {"gamma": 0.7, "scale_base": 100.0}, DECODER),
    (config.Alibi(), {"asymmetry": 0.5}, ENCODER),
    (T5, {"n_buckets": 12, "max_distance": 6, "scaled": False}, BOTH),
    (config.Kerple(), {"form": "power"}, BOTH),
    (config.Fire(threshold=3.0), {"width": 16, "c": 0.4, "threshold": 6.0}, BOTH),
    (config.Sandwich(width=8), {"width": 6, "base": 50.0}, BOTH),
    (config.Shaw(clip=3), {"clip": 2, "values": False}, BOTH),
    (config.TransformerXl(), {"reading": "xlnet", "base": 50.0}, BOTH),
    (DEBERTA, {"max_distance": 5, "log_buckets": 4, "c2p": False, "p2c": False}, BOTH),
    (LOG, {"max_distance": 7, "c2p": False, "p2c": False}, BOTH),
    (config.Tupe(), {"max_positions": 25, "relative": config.Alibi()}, BOTH),
    (config.Dape(bias=T5, width=4), {"bias": config.Alibi(), "width": 5}, BOTH),
    (config.Cope(n_positions=4), {"n_positions": 3}, DECODER),
    (config.Cope(), {"encoder": config.Alibi()}, ENCODER),
    (config.Fox(), {"encoder": config.Alibi()}, ENCODER),
    (config.Combined(), {"input": config.Sinusoidal(layout="half"), "attention": T5}, BOTH),
    (config.Interleaved(), {"others": T5}, BOTH),
    (config.Ssmax(), {"scheme": config.Alibi(), "start": 1.0}, BOTH),
    (config.Randomized(), {"scheme": T5, "spread": 900, "max_positions": 100}, BOTH),
]
SCALINGS: list[tuple[Any, dict[str, Any]]] = [
    (config.LinearScaling(), {"factor": 2.0}),
    (config.NtkScaling(), {"factor": 2.0}),
    (DYNAMIC, {"factor": 3.0, "trained_length": 5}),
    (YARN, {"factor": 3.0, "trained_length": 100, "beta_fast": 1.5, "beta_slow": 0.1}),
]


def outputs(position: Any) -> dict[str, Tensor]:
    torch.manual_seed(0)
    scheme = loud(build_scheme(tiny_config(position)), least_dim=2)
    at = scheme.positions("source", 0, N, torch.device("cpu"))
    return {kind: run(scheme, kind, at=at) for kind in KINDS}


EACH_CHANGE = [
    (section, {field: value}, stacks)
    for section, changes, stacks in CHANGES
    for field, value in changes.items()
] + [
    (config.Rope(scaling=scaling), {"scaling": replace(scaling, **{field: value})}, BOTH)
    for scaling, changes in SCALINGS
    for field, value in changes.items()
]


CHANGE_IDS = [
    f"{type(section).__name__} {next(iter(change))}" for section, change, _ in EACH_CHANGE
]


@pytest.mark.parametrize(("section", "change", "stacks"), EACH_CHANGE, ids=CHANGE_IDS)
def test_a_field_of_the_configuration_reaches_its_stacks(section, change, stacks) -> None:
    before, after = outputs(section), outputs(replace(section, **change))
    assert {kind for kind in KINDS if apart(before[kind], after[kind]) > 1e-7} == stacks


def test_no_field_is_left_out() -> None:
    tried = {(type(s), field) for s, changes, *_ in [*CHANGES, *SCALINGS] for field in changes}
    classes = [*POSITION_SCHEMES, *get_args(config.Scaling)]
    every = {(cls, field.name) for cls in classes for field in fields(cls)}
    # How it is computed, the scalings themselves, cross-attention and the bound are below; what is
    # drawn in training alone, and what only higher layers see, in test_schemes_of_schemes.py.
    tried |= {(config.Rope, name) for name in ("form", "scaling", "cross")} | {
        (config.XPos, "form"),
        (config.Sinusoidal, "max_positions"),
        (config.Shape, "max_shift"),
        (config.Interleaved, "nth"),
        (config.Interleaved, "every"),
    }
    assert every == tried


@pytest.mark.parametrize("name", POSITIONS)
def test_every_name_is_one_word_on_the_command_line_and_a_kind_stands_for_defaults(
    name: str,
) -> None:
    base = load_config("configs/multi30k_small_rope.py")
    changed = apply_overrides(base, [], position=name)
    assert from_dict(to_dict(changed)) == changed
    position = POSITIONS[name]
    # the config's own section is kept where it is of this kind
    assert changed.model.position == (base.model.position if name == "rope" else position)
    assert name != position.kind or position == type(position)()


COPE_OF_NONE = config.Cope(encoder=config.NoPosition())
FOX_OF_TABLE = config.Fox(encoder=config.Learnable())
FOX_BY_CONTENT = config.Fox(encoder=config.SelectiveRope())
INTERLEAVED_BY_CONTENT = config.Interleaved(others=config.SelectiveRope())
NTK, DYNAMIC_NTK = config.NtkScaling(), config.DynamicNtkScaling()
SMALL = config.Learnable(max_positions=100)


def lengths(*, position: Any, source: int, target: int) -> None:
    base = load_config("configs/multi30k_small_rope.py")
    data, decode = replace(base.data, max_len=source), replace(base.decode, max_len=target)
    replace(base, model=replace(base.model, position=position), data=data, decode=decode)


REFUSED: list[tuple[Any, dict[str, Any], str]] = [
    (config.Cope, {"encoder": config.Fox()}, r"model.position.encoder = .*allowed: .*Rope"),
    (config.Fox, {"encoder": config.XPos()}, r"model.position.encoder = .*allowed: .*Rope"),
    (config.Fox, {"encoder": config.Rope(cross=True)}, r"encoder.cross = .*allowed: False"),
    (config.Combined, {"input": config.Rope()}, "input = .*allowed: Sinusoidal, Learnable"),
    (config.Combined, {"attention": FOX_OF_TABLE}, "attention.encoder = .*scheme already"),
    (config.Shape, {"input": config.Rope()}, "input = .*allowed: Sinusoidal, Learnable"),
    (config.Shape, {"max_shift": 0}, "max_shift = 0"),
    (config.Interleaved, {"every": 1}, "every = 1"),
    (config.Interleaved, {"nth": config.Learnable()}, "nth = .*allowed: NoPosition, Rope"),
    (config.Interleaved, {"nth": FOX_OF_TABLE}, "nth.encoder = .*embeddings have no layers"),
    (
        tiny_config,
        {"position": config.Interleaved(every=3)},
        "every = 3: must be at most 2, the layers",
    ),
    (config.Ssmax, {"start": 0.0}, "start = 0.0"),
    (config.Ssmax, {"scheme": config.Ssmax()}, "scheme = .*allowed: .*Combined$"),
    (config.Randomized, {"scheme": config.Ssmax(scheme=config.NoPosition())}, "ssmax does not use"),
    (config.Randomized, {"spread": 100}, r"spread = 100: .* >= max_positions = 256"),
    (config.Randomized, {"scheme": config.Learnable()}, "scheme.max_positions allows for 512"),
    (config.Randomized, {"scheme": config.NoPosition()}, "none does not use the drawn positions"),
    (config.Randomized, {"scheme": config.SelectiveRope()}, "selective_rope does not use the"),
    (config.Randomized, {"scheme": config.Rope(share=0.0)}, "rope does not use the drawn"),
    (config.Randomized, {"scheme": COPE_OF_NONE}, "cope does not use the drawn positions"),
    (config.Randomized, {"scheme": FOX_BY_CONTENT}, "fox does not use the drawn positions"),
    (config.Randomized, {"scheme": INTERLEAVED_BY_CONTENT}, "interleaved does not use the drawn"),
    (config.Rope, {"rope_dim": "model", "scaling": NTK}, "ntk .* defined for rope_dim = 'head'"),
    (config.Rope, {"cross": True, "scaling": DYNAMIC_NTK}, "scales each side by its own length"),
    (config.Rope, {"clipped": -0.1}, "clipped = -0.1: .* >= 0 and <= 1"),
    (config.Rope, {"share": 1.1}, "share = 1.1: .* >= 0 and <= 1"),
    (config.Rope, {"learn_frequencies": True, "scaling": NTK}, "needs rope_dim = 'head'"),
    (config.Rope, {"learn_frequencies": True, "rope_dim": "model"}, "and scaling = none"),
    (config.Sinusoidal, {"layout": "whole"}, "layout = 'whole'"),
    (config.T5, {"n_buckets": 30}, "n_buckets = 30: .* and a multiple of 4"),
    (config.T5, {"n_buckets": 0}, "n_buckets = 0"),
    (config.T5, {"max_distance": 16}, "max_distance = 16: .* greater than n_buckets / 2 = 16"),
    (config.Kerple, {"form": "square"}, "form = 'square'"),
    (config.Fire, {"width": 0}, "width = 0"),
    (config.Fire, {"c": 0.0}, "c = 0.0"),
    (config.Fire, {"threshold": -1.0}, "threshold = -1.0"),
    (config.Sandwich, {"width": 3}, "width = 3: .* a multiple of 2"),
    (config.Shaw, {"clip": 0}, "clip = 0"),
    (config.Deberta, {"c2p": False, "p2c": False}, "switch on c2p, p2c or both"),
    (config.Deberta, {"log_buckets": 5}, "log_buckets = 5: .* a multiple of 2"),
    (config.Deberta, {"max_distance": 8, "log_buckets": 8}, r"8: .* < max_distance = 8"),
    (config.Deberta, {"max_distance": 0}, "max_distance = 0"),
    (config.Tupe, {"max_positions": 0}, "max_positions = 0"),
    (config.Tupe, {"relative": config.Rope()}, "relative = .*allowed: NoPosition, Alibi, T5"),
    (config.Dape, {"bias": config.Shaw()}, "bias = .*allowed: Alibi, T5, Kerple, Fire, Sandwich"),
    (config.Dape, {"width": 0}, "width = 0"),
    (config.Cope, {"n_positions": 1}, "n_positions = 1"),
    (config.Pope, {"base": 1.0}, "base = 1.0"),
    (config.Fope, {"trained_length": 6}, "trained_length = 6: allowed: an integer >= 7"),
    (config.Repo, {"width": 0}, "width = 0"),
    (config.Interleaved, {"nth": config.Repo()}, "nth = .*allowed: NoPosition, Rope"),
    (config.Randomized, {"scheme": config.Repo(rope_layers=0)}, "repo does not use the drawn"),
    (tiny_config, {"position": config.Repo(rope_layers=2)}, "rope_layers = 2: must be below 2"),
    (tiny_config, {"position": config.Repo(), "d_model": 6}, "repo needs an even head size"),
    (
        tiny_config,
        {"position": config.Combined(attention=config.Repo(rope_layers=2))},
        r"model\.position\.attention\.rope_layers = 2: must be",
    ),
    (config.SelectiveRope, {"rank": 0}, "rank = 0"),
    (tiny_config, {"position": config.SelectiveRope(), "d_model": 6}, "needs an even head size"),
    (config.LinearScaling, {"factor": 0.5}, "factor = 0.5"),
    (config.NtkScaling, {"factor": 0.5}, "factor = 0.5"),
    (config.DynamicNtkScaling, {"trained_length": 0}, "trained_length = 0"),
    (config.YarnScaling, {"factor": 0.9}, "factor = 0.9"),
    (config.YarnScaling, {"beta_fast": 1.0}, r"beta_fast = 1.0: .* > beta_slow = 1.0"),
    (tiny_config, {"position": config.Fox(), "d_model": 6}, "rope needs an even head size"),
    (tiny_config, {"position": config.XPos(), "d_model": 6}, "xpos needs an even head size"),
    (tiny_config, {"position": config.Rope(scaling=NTK), "d_model": 4}, "head size of 4 or more"),
    (tiny_config, {"position": config.Sinusoidal(layout="t2t"), "d_model": 2}, "d_model of 4"),
    (tiny_config, {"position": config.Sinusoidal(), "d_model": 9, "n_heads": 3}, "a multiple of 2"),
    (
        lengths,
        {"position": config.Fox(encoder=SMALL), "source": 128, "target": 100},
        "encoder.max_positions = 100: .* tokens on the source",
    ),
    (
        lengths,
        {"position": config.Shape(input=SMALL, max_shift=40), "source": 60, "target": 61},
        "input.max_positions = 100: allows for 60 tokens on the target.*lower the other, or raise",
    ),
    (
        lengths,
        {"position": config.XPos(scale_base=1.0), "source": 30, "target": 100},
        r"scale_base = 1.0: allows for 63 tokens on the target",  # 3.5^63 is 2e34
    ),
]


@pytest.mark.parametrize(("make", "fields", "says"), REFUSED)
def test_what_cannot_serve_is_refused_when_the_config_is_made(make, fields, says: str) -> None:
    with pytest.raises(ConfigError, match=says):
        make(**fields)


def test_positions_are_drawn_where_a_part_of_a_scheme_uses_them() -> None:
    for scheme in (config.Interleaved(), config.Cope(), config.Ssmax(scheme=config.Cope())):
        assert config.Randomized(scheme=scheme).scheme == scheme


def test_a_decoder_that_counts_has_no_table_to_outgrow() -> None:
    lengths(position=config.Fox(encoder=SMALL), source=100, target=200)


@every_scheme
def test_past_the_trained_length_a_scheme_works_or_names_the_length(name: str) -> None:
    model, src, tgt_in = shared_model(name), sources(40), targets(1, 40)
    bound = TINY[name].tightest()
    if bound is None or bound.length > 40:
        assert torch.isfinite(model(src, tgt_in)).all()
    else:
        says = r"a source of 40 tokens is too long: model\.position\..*max_positions allows for 24;"
        with pytest.raises(UserError, match=says):
            model(src, tgt_in)


# ---------------------------------------------------------------------------------- cross-attention


def check_cross_attention_has_no_positions(model: TranslationTransformer) -> None:
    """It is softmax(q k^T / sqrt(Dh)) v at any places, and takes the memory in any order."""
    x, memory = normal(1, 3, D_MODEL, seed=1), normal(1, 5, D_MODEL, seed=2)
    places = Places(torch.tensor([4, 5, 6]), torch.arange(5))
    for number, layer in enumerate(model.decoder.layers):
        cross, position = layer.cross_attention, model.scheme.attention("cross", number)
        keys, values = cross.place_memory(
            cross.kv_proj(memory), position=position, k_positions=places.k_positions
        )
        out = cross(x, keys, values, position=position, places=places)
        q, k, v = (
            part.unflatten(-1, (N_HEADS, -1)).transpose(1, 2)
            for part in (cross.q_proj(x), *cross.kv_proj(memory).split(D_MODEL, dim=-1))
        )
        mixed = (q @ k.mT / math.sqrt(D_MODEL // N_HEADS)).softmax(-1) @ v
        close(out, cross.out_proj(mixed.transpose(1, 2).flatten(-2)))
    encoded = model.encode(sources(6))
    permuted = replace(encoded, states=encoded.states[:, [3, 0, 5, 1, 4, 2]])
    close(model.decode(targets(1, 4), permuted), model.decode(targets(1, 4), encoded))


@pytest.mark.parametrize("name", [name for name in TINY if name != "rope_cross"])
def test_cross_attention_has_no_positions_in_any_scheme(name: str) -> None:
    check_cross_attention_has_no_positions(shared_model(name))


def has_modules(name: str) -> bool:
    """What acts by the state of tokens has none there to act by."""
    scheme, x = scheme_of(name), torch.zeros(1, 2, D_MODEL, dtype=torch.float64)
    return (
        isinstance(scheme, AttentionScheme)
        and scheme.attention("decoder", 0).token_state(x) is None
    )


WITH_MODULES = [name for name in TINY if has_modules(name)]


@pytest.mark.parametrize("name", WITH_MODULES)
def test_a_position_in_cross_attention_is_caught(name: str) -> None:
    """The decoder's modules of the scheme stand there too."""
    model = model_with(name)
    if name != "rope_cross":
        model.scheme.cross = nn.ModuleList(model.scheme.decoder)
    catches(check_cross_attention_has_no_positions, model)


def test_rope_in_cross_attention_gives_q_and_k_their_own_positions() -> None:
    """Where every key is the same, a query's logits differ by its own distance to each."""
    model = tiny_model(config.Rope(cross=True))
    cross, position = model.decoder.layers[0].cross_attention, model.scheme.attention("cross", 0)
    x, memory = normal(1, 1, D_MODEL).expand(1, 3, -1), normal(1, 5, D_MODEL, seed=1)
    q_at, k_at = torch.tensor([4, 5, 6]), torch.arange(5)
    outs = []
    for shift in (0, 20):
        places = Places(q_at + shift, k_at + shift)
        kv = cross.kv_proj(memory)
        k, v = cross.place_memory(kv, position=position, k_positions=places.k_positions)
        outs.append(cross(x, k, v, position=position, places=places))
    close(*outs)
    assert apart(outs[0][:, 0], outs[0][:, 1]) > 1e-4


# ----------------------------------------------------------------------------- mistakes in decoding


def check_a_step_goes_on_where_the_prefix_ended(model: TranslationTransformer) -> None:
    src, tgt_in = sources(6, 4), targets(2, 5)
    state = model.init_state(model.encode(src), beam_size=1, max_len=5)
    steps = [model.decode_step(tgt_in[:, t : t + 1], state)[:, 0] for t in range(5)]
    close(torch.stack(steps, dim=1), model(src, tgt_in))


def anew(side: str, start: int, end: int, device: torch.device) -> Tensor:
    """`pe[:, : x.size(1)]`: a one-token step stands at position 0."""
    return torch.arange(end - start)


def drawn_anew(side: str, start: int, end: int, device: torch.device) -> Tensor:
    return draw_positions(end, 48)[start:]


STARTED_ANEW = ("sinusoidal", "learnable", "rope", "alibi", "sinusoidal_t5", "learnable_shaw")
POSITION_MISTAKES = [(name, anew) for name in STARTED_ANEW]
POSITION_MISTAKES += [(name, drawn_anew) for name in ("randomized_rope", "randomized_t5")]


@pytest.mark.parametrize(("name", "mistake"), POSITION_MISTAKES)
def test_a_known_mistake_is_caught_positions_at_every_step(name: str, mistake: Any) -> None:
    model = tiny_model(TINY[name])
    check_a_step_goes_on_where_the_prefix_ended(model)
    model.scheme.positions = mistake
    torch.manual_seed(3)
    catches(check_a_step_goes_on_where_the_prefix_ended, model)


def test_the_contracts_default_to_no_position() -> None:
    scheme, x, positions = PositionScheme(), torch.randn(1, 1, 2, 4), torch.tensor([3, 4])
    assert torch.equal(scheme.input("source")(x[0], positions), x[0])
    attention, places = scheme.attention("cross", 1), Places(positions, positions)
    assert torch.equal(attention.rotate(x, positions, "key"), x)
    assert attention.bias(places) is None
    assert attention.token_state(x[0]) is None
    assert attention.logit_term(x, x, places, None) is None
    assert attention.logit_scale(16, places) == 0.25
    assert attention.needs_weights is False
    with pytest.raises(TypeError, match="AttentionPosition has no value term"):
        attention.value_term(x, places)
