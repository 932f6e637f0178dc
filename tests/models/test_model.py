"""The whole model, for every position scheme and both norms, and against torch's own."""

import math
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from tiny_models import (
    BOS,
    D_MODEL,
    EOS,
    N_HEADS,
    PAD,
    POSITIONS,
    TOYS,
    VOCAB,
    close,
    model_with,
    shared_model,
    sources,
    targets,
    tiny_config,
    tiny_model,
    vocabulary,
)
from torch import Tensor

from configs.schema import Sinusoidal
from models.attention.tap import AttentionTap
from models.build import build_model
from models.loss import token_sums
from models.transformer import TranslationTransformer
from utils.errors import ConfigError, UserError

DOUBLE = torch.float64
# Where layers normalise is no matter of the scheme: post-norm meets each point of the seam (the
# toys) and each stack.
POST = [*TOYS, "none", "sinusoidal", "learnable", "rope", "torch"]
EVERY = [(name, "pre") for name in [*POSITIONS, *TOYS, "torch"]] + [(name, "post") for name in POST]
EVERY.append(("rope", "deepnorm"))
every_model = pytest.mark.parametrize(("name", "norm"), EVERY)


# ------------------------------------------------------------------------------------- what is seen


@every_model
def test_a_later_target_token_changes_nothing_before_it(name: str, norm: str) -> None:
    model, src, tgt_in = shared_model(name, norm=norm), sources(5, 4), targets(2, 7)
    places = (1, 4, 6)
    versions = tgt_in.repeat(1 + len(places), 1, 1)
    for version, t in zip(versions[1:], places):
        version[:, t] = tgt_in[:, t] % 8 + 1
    with torch.no_grad():
        every = model(src.repeat(len(versions), 1), versions.flatten(0, 1))
        logits, *others = every.split(len(src))
    for changed, t in zip(others, places):
        difference = (changed - logits).abs().amax(dim=(0, 2))
        assert difference[:t].max() < 1e-10
        assert (difference[t:] > 1e-7).all()


@every_model
@torch.no_grad()
def test_more_padding_changes_no_real_position(name: str, norm: str) -> None:
    model, tgt_in = shared_model(name, norm=norm), targets(2, 5)
    src, padded = sources(6, 3), sources(6, 3, pad_to=11)
    memory, padded_memory = model.encode(src), model.encode(padded)
    close(padded_memory.states[0, :6], memory.states[0])
    close(padded_memory.states[1, :3], memory.states[1, :3])
    logits = model(src, tgt_in)
    tail = torch.full((2, 4), PAD)
    close(model(padded, torch.cat((tgt_in, tail), dim=1))[:, :5], logits)
    alone = model(src[1:, :3], tgt_in[1:])  # the same sentence without a neighbour
    close(alone[0], logits[1])


@pytest.mark.parametrize("name", ["none", "rope", "torch"])
def test_padding_of_the_target_is_never_read_off_its_ids(name: str) -> None:
    """Decoding starts from padding (Marian): the start token must be attended to."""
    assert BOS == PAD
    model, src, tgt_in = model_with(name), sources(5), targets(1, 4)
    logits = model(src, tgt_in)
    with torch.no_grad():
        model.tgt_embedding.weight[BOS] += torch.randn(D_MODEL)
    change = (model(src, tgt_in) - logits).abs().amax(dim=-1)[0]
    assert (change > 1e-4).all()
    if name != "torch":
        tap = AttentionTap()
        model(src, tgt_in, tap=tap)
        assert (tap.maps("decoder")[..., 0] > 0).all()


def test_id_zero_of_the_source_is_not_padding() -> None:
    model = tiny_model()
    assert model.encode(torch.tensor([[3, EOS, PAD]])).padding.tolist() == [[False, False, True]]
    shifted = tiny_model(vocab=vocabulary(pad_id=0))
    assert shifted.encode(torch.tensor([[3, 5, 0]])).padding.tolist() == [[False, False, True]]


@pytest.mark.parametrize("name", ["rope", "torch"])
def test_select_gives_the_same_logits_as_all(name: str) -> None:
    model, src, tgt_in = model_with(name), sources(5, 3), targets(2, 4)
    select = torch.tensor([[1, 0, 1, 1], [0, 1, 0, 0]]).bool()
    close(model(src, tgt_in, select=torch.tensor([0, 2, 3, 5])), model(src, tgt_in)[select])


def test_embeddings_are_scaled_with_the_root_of_d_model_before_positions() -> None:
    model, src = tiny_model(Sinusoidal(), n_encoder_layers=1), sources(4)
    seen: list[Tensor] = []
    model.encoder.register_forward_pre_hook(lambda module, args: seen.append(args[0]))
    model.encode(src)
    widths = [10000 ** (i / D_MODEL) for i in range(0, D_MODEL, 2)]
    waves = [[f(t / w) for w in widths for f in (math.sin, math.cos)] for t in range(4)]
    table = torch.tensor(waves, dtype=DOUBLE)
    close(seen[0], model.src_embedding.weight[src] * 4.0 + table)


def test_dropout_stands_on_embeddings_branches_and_inside_the_feed_forward() -> None:
    src, tgt_in = sources(5), targets(1, 4)
    for changes in ({"dropout": 0.5}, {"activation_dropout": 0.5}, {"attention_dropout": 0.5}):
        model = tiny_model(**changes)
        close(model(src, tgt_in), tiny_model()(src, tgt_in), 0.0)
        model.train()
        assert (model(src, tgt_in) - model(src, tgt_in)).abs().max() > 1e-3
    for norm in ("pre", "post"):
        model = tiny_model(norm=norm, dropout=0.5, embedding_dropout=0.0).train()
        assert (model(src, tgt_in) - model(src, tgt_in)).abs().max() > 1e-3
    model = tiny_model(dropout=0.5).train()
    seen: list[Tensor] = []
    model.encoder.register_forward_pre_hook(lambda module, args: seen.append(args[0]))
    model.encode(src)
    assert 0.2 < (seen[0] == 0).double().mean() < 0.8
    feed_forward = model.encoder.layers[0].feed_forward  # activation_dropout is 0
    assert torch.equal(feed_forward(seen[0]), feed_forward(seen[0]))


# --------------------------------------------------------------------------------------- parameters


@every_model
def test_every_parameter_gets_a_gradient(name: str, norm: str) -> None:
    model = shared_model(name, norm=norm)
    keys, parameters = zip(*model.named_parameters())
    loss = model(sources(6, 4), targets(2, 5)).square().sum()
    gradients = zip(keys, torch.autograd.grad(loss, parameters))
    # FIRE's last bias shifts all logits of a head alike, which a softmax does not see.
    unseen = {key for key, gradient in gradients if gradient.abs().max() < 1e-12}
    bias = {f"scheme.{stack}.0.out.bias" for stack in ("encoder", "decoder")}
    assert unseen == (bias if name == "fire" else set())


@pytest.mark.parametrize("tie", ["none", "target", "all"])
def test_tied_weights_are_one_parameter(tie: Any) -> None:
    model = tiny_model(tie_embeddings=tie)
    tables = {id(m.weight) for m in (model.src_embedding, model.tgt_embedding, model.output)}
    n_tables = sum(p.shape == (VOCAB, D_MODEL) for p in model.parameters())
    assert n_tables == len(tables) == {"none": 3, "target": 2, "all": 1}[tie]
    src, tgt_in = sources(5), targets(1, 4)
    hidden = model.decode(tgt_in, model.encode(src))
    close(model(src, tgt_in), hidden @ model.output.weight.T)


def test_an_output_bias_is_in_logits_steps_and_gradients_alike() -> None:
    model = tiny_model(output_bias=True, tie_embeddings="all")
    src, tgt_in, tgt_out = sources(5), targets(1, 4), targets(1, 4, seed=1).flatten()
    memory = model.encode(src)
    logits = model.decode(tgt_in, memory) @ model.output.weight.T + model.output.bias
    close(model(src, tgt_in), logits)
    with torch.no_grad():
        state = model.init_state(model.encode(src), beam_size=1, max_len=4)
        close(model.decode_step(tgt_in[:, None], state)[:, 0], logits)
    expected = F.cross_entropy(logits[0], tgt_out, label_smoothing=0.1, reduction="sum")
    flat = torch.arange(4)
    hidden, weight = model(src, tgt_in, select=flat, project=False), model.output_weight()
    assert hidden.shape[-1] == weight.shape[-1] == D_MODEL + 8
    found = token_sums(hidden, weight, tgt_out, label_smoothing=0.1).objective
    close(found, expected)
    parameters = list(model.parameters())
    for ours, theirs in zip(*(torch.autograd.grad(x, parameters) for x in (found, expected))):
        close(ours, theirs)


def test_tying_separate_vocabularies_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"model\.tie_embeddings = 'all'.*'none', 'target'"):
        build_model(tiny_config(tie_embeddings="all"), vocabulary(shared_vocab=False))
    apart = vocabulary(shared_vocab=False, src_vocab_size=17)
    model = build_model(tiny_config(tie_embeddings="target"), apart)
    assert model.src_embedding.weight.shape == (17, D_MODEL)
    assert model.output.weight.shape == (VOCAB, D_MODEL)


@pytest.mark.parametrize("backend", ["scratch", "torch"])
def test_a_fresh_model_starts_at_a_sensible_loss_in_training_mode(backend: Any) -> None:
    torch.manual_seed(0)
    model = build_model(tiny_config(backend=backend, output_bias=True), vocabulary())
    assert model.training
    assert all(p.requires_grad and p.dtype == torch.float32 for p in model.parameters())
    assert model.src_embedding.weight.std().item() == pytest.approx(D_MODEL**-0.5, rel=0.2)
    logits = model(sources(5, 5), targets(2, 6))
    assert logits.std() < 2.5
    biases = {key: p for key, p in model.named_parameters() if key.endswith("bias")}
    assert all((p == 0).all() for key, p in biases.items() if "norm" not in key)
    assert len(biases) > 20


# ----------------------------------------------------------------------------------- token by token


def steps(model: TranslationTransformer, src: Tensor, tgt_in: Tensor, chunks: list[int]) -> Tensor:
    """Logits [B,K,T,V] of tgt_in [B,K,T] through decode_step, in chunks of the given lengths."""
    state = model.init_state(model.encode(src), beam_size=tgt_in.shape[1], max_len=tgt_in.shape[2])
    pieces, start = [], 0
    for n in chunks:
        assert state.length == start
        chunk = tgt_in[:, :, start] if n == 1 else tgt_in[:, :, start : start + n]
        logits = model.decode_step(chunk, state)
        pieces.append(logits[:, :, None] if n == 1 else logits)
        start += n
    return torch.cat(pieces, dim=2)


@every_model
def test_stepwise_logits_equal_those_of_the_whole_target(name: str, norm: str) -> None:
    model, src = shared_model(name, norm=norm), sources(6, 3)
    tgt_in = targets(6, 7).view(2, 3, 7)
    with torch.no_grad():
        whole = model(src.repeat_interleave(3, dim=0), tgt_in.flatten(0, 1)).view(2, 3, 7, -1)
        for chunks in ([1] * 7, [2, 2, 1, 2]):
            close(steps(model, src, tgt_in, chunks), whole)


MODERN = {"activation": "silu", "gated": True, "layer_norm": "rms"}


@pytest.mark.parametrize("changes", [{"activation": "gelu"}, MODERN, {**MODERN, "norm": "post"}])
def test_a_step_has_the_activation_and_the_norms_of_the_model(changes: dict[str, Any]) -> None:
    model, src, tgt_in = tiny_model(**changes), sources(6, 3), targets(2, 4)
    with torch.no_grad():
        close(steps(model, src, tgt_in[:, None], [1] * 4), model(src, tgt_in)[:, None])


@torch.no_grad()
def test_a_gated_layer_with_rms_norms_is_that_of_the_papers() -> None:
    layer = tiny_model(**MODERN).encoder.layers[0]
    ffn, gain = layer.feed_forward, torch.rand_like(layer.norm2.weight)
    layer.norm2.weight.copy_(gain)
    x = torch.randn(2, 3, len(gain), dtype=DOUBLE, generator=torch.Generator().manual_seed(0))
    normal = gain * x / (x.square().mean(-1, keepdim=True) + 1e-5).sqrt()
    (w, v), (b, c) = ffn.linear1.weight.chunk(2), ffn.linear1.bias.chunk(2)
    inner, value = normal @ w.T + b, normal @ v.T + c
    expected = (inner / (1 + (-inner).exp()) * value) @ ffn.linear2.weight.T + ffn.linear2.bias
    close(ffn(layer.norm2(x)), expected)


@every_model
def test_reordered_and_selected_beams_go_on_from_their_own_prefix(name: str, norm: str) -> None:
    model, src = shared_model(name, norm=norm), sources(6, 3, 5)
    prefix = targets(9, 4).view(3, 3, 4)
    tail = targets(9, 3, seed=1).view(3, 3, 3)
    beams, alive = torch.tensor([[2, 0, 0], [1, 2, 0], [1, 1, 1]]), torch.tensor([2, 0])
    expected_prefix = prefix.gather(1, beams[:, :, None].expand(-1, -1, 4))
    whole = torch.cat((expected_prefix, tail), dim=2)[alive]
    with torch.no_grad():
        logits = model(src[alive].repeat_interleave(3, dim=0), whole.flatten(0, 1))
    for rest in ([1, 1, 1], [2, 1]):
        state = model.init_state(model.encode(src), beam_size=3, max_len=7)
        with torch.no_grad():
            model.decode_step(prefix, state)
            state.reorder(beams)
            state.select(alive)
            pieces = [model.decode_step(c, state) for c in tail[alive].split(rest, dim=2)]
        close(torch.cat(pieces, dim=2), logits.view(2, 3, 7, -1)[:, :, 4:])


def test_the_memory_is_not_copied_for_the_beams() -> None:
    model, src = model_with("rope"), sources(6, 3)
    state = model.init_state(model.encode(src), beam_size=5, max_len=9)
    head = D_MODEL // N_HEADS
    assert [step.k.shape for step in state.layers] == [(2, N_HEADS, 6, head)] * 2
    assert state.memory_mask.shape == (2, 1, 1, 6)
    assert state.cache.held.shape == (2, 2, 10, N_HEADS, 9, head)
    state.select(torch.tensor([1]))
    assert [len(step.k) for step in state.layers] == [1, 1]
    assert state.cache.held.shape[2] == 5
    original = model_with("torch")
    state = original.init_state(original.encode(src), beam_size=5, max_len=9)
    assert len(state.memory.states) == 2


# ----------------------------------------------------------------------------- torch.nn.Transformer


TORCH_NAMES = {  # of torch's layers -> in ours (cross-attention's packed rows apart)
    ".stack.": ".",
    ".self_attn.in_proj_": ".self_attention.qkv_proj.",
    ".self_attn.": ".self_attention.",
    ".multihead_attn.": ".cross_attention.",
    ".linear": ".feed_forward.linear",
}


def to_torch(ours: dict[str, Tensor], keys: list[str]) -> dict[str, Tensor]:
    """Our tensors by torch's names: in_proj rows of cross-attention are q_proj over kv_proj."""
    mapped = {}
    for name in keys:
        key = name
        for theirs, our_part in TORCH_NAMES.items():
            name = name.replace(theirs, our_part)
        if ".cross_attention.in_proj_" in name:
            stem, kind = name.split("in_proj_")
            mapped[key] = torch.cat((ours[f"{stem}q_proj.{kind}"], ours[f"{stem}kv_proj.{kind}"]))
        else:
            mapped[key] = ours[name]
    return mapped


def twins(position: Any, **changes: Any) -> tuple[TranslationTransformer, TranslationTransformer]:
    scratch = tiny_model(position, **changes)
    original = tiny_model(position, backend="torch", seed=1, **changes)
    original.load_state_dict(to_torch(scratch.state_dict(), list(original.state_dict())))
    return scratch, original


NORMS = [{"norm": norm, "activation": how} for norm in ("pre", "post") for how in ("relu", "gelu")]
TWINS: list[tuple[str, dict[str, Any]]] = [
    *(("learnable", changes) for changes in (*NORMS, {"activation": "silu"}, {"bias": False})),
    ("none", {}),
    ("sinusoidal", {}),
]


@pytest.mark.parametrize(("name", "changes"), TWINS, ids=str)
def test_torchs_transformer_agrees_in_logits_and_gradients(
    name: str, changes: dict[str, Any]
) -> None:
    models = twins(POSITIONS[name], **changes)
    src, tgt_in = sources(6, 3, 5), targets(3, 5)
    weight = torch.randn(3, 5, VOCAB, dtype=DOUBLE, generator=torch.Generator().manual_seed(0))
    logits = [model.train()(src, tgt_in) for model in models]
    close(*logits, 1e-9)
    gradients = []
    for model, out in zip(models, logits):
        (out * weight).sum().backward()
        gradients.append({key: p.grad for key, p in model.named_parameters()})
    ours = to_torch(gradients[0], list(gradients[1]))
    assert len(ours) == len(gradients[1]) > 30
    for key, gradient in gradients[1].items():
        close(ours[key], gradient, 1e-9)
    with torch.inference_mode():  # torch's fast path
        close(models[1].eval()(src, tgt_in), models[0].eval()(src, tgt_in), 1e-9)


def test_torchs_transformer_shows_no_attention() -> None:
    with pytest.raises(UserError, match=r"train one with model\.backend=scratch"):
        model_with("torch")(sources(4), targets(1, 3), tap=AttentionTap())
