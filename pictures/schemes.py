"""What a position scheme does, as arrays to draw: measured through the two contracts of `base.py`.

So every scheme, layout and scaling is drawn as it is used, `at` given positions [T], or at n of
them, 0 .. n-1; only Shaw's tables have code of their own. Arrays are float64.
"""

import copy
import itertools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal, get_args

import numpy as np
import torch
from torch import Tensor, nn

from configs.position_names import position_name
from configs.positions import SIDES, Sinusoidal
from configs.schema import ModelConfig
from models.positional_encodings.base import (
    AttentionPosition,
    InputPosition,
    Places,
    PositionScheme,
    Role,
    Side,
    least,
)
from models.positional_encodings.shaw import Shaw
from models.schemes import build_scheme
from models.transformer_backend import Encoder
from translation.loading import LoadedRun
from utils.errors import UserError

STACKS = ("encoder", "decoder")
Cause = Literal["words", "length"]


def _whole(at: int | Tensor) -> Tensor:
    return torch.arange(at) if isinstance(at, int) else at


@dataclass(frozen=True)
class Scheme:
    """A position scheme to draw, in a model of this shape; `about` ends titles (run and epoch).

    Arrays come by side or by stack, once under "" if both have the same; none if there is nothing.
    """

    name: str
    module: PositionScheme
    model: ModelConfig
    trained: bool = False
    about: str = ""
    encoder: nn.Module | None = None  # of a trained run

    @property
    def state(self) -> Literal["fixed", "untrained", "trained"]:
        """A scheme without parameters is fixed, whether its model was trained or not."""
        if not any(True for _ in self.module.parameters()):
            return "fixed"
        return "trained" if self.trained else "untrained"

    @property
    def label(self) -> str:
        return self.name if self.state == "fixed" else f"{self.name}, {self.state}"

    @property
    @torch.enable_grad()
    def learns_tables(self) -> bool:
        """Whether what is added to the embeddings has parameters."""
        x, at = torch.zeros(1, 1, self.model.d_model), torch.arange(1)
        return any(self.module.input(side)(x, at).requires_grad for side in SIDES)

    def references(self) -> list["Scheme"]:
        """References for learned tables: the same before training, and sinusoids."""
        found = []
        if self.learns_tables:
            if self.trained:
                found.append(fresh_scheme(self.name, self.model))
            found.append(fresh_scheme("sinusoidal", replace(self.model, position=Sinusoidal())))
        return found

    def n_positions(self, wanted: int | None, default: int) -> int:
        """`wanted`, or `default` cut to the known positions. Raises UserError for too many."""
        known = least(*map(self.module.max_length, SIDES))
        if known is not None and wanted is not None and wanted > known:
            raise UserError(f"--positions {wanted}: the {self.name} encoding has {known}")
        return wanted or min(default, known or default)

    def positions(self, side: Side, n: int) -> Tensor:
        """The positions of n tokens outside training, [n]: `randomized` leaves gaps."""
        return self.module.positions(side, 0, n, torch.device("cpu"))

    @torch.inference_mode()
    def tables(self, at: int | Tensor, sides: Sequence[Side] = SIDES) -> dict[str, np.ndarray]:
        """What is added to the embeddings, [T,D] by side."""
        positions = _whole(at)
        zeros = torch.zeros(1, len(positions), self.model.d_model, dtype=torch.float64)
        inputs = {side: self.module.input(side) for side in sides}
        found: dict[str, np.ndarray] = {
            side: module(zeros, positions)[0].numpy()
            for side, module in inputs.items()
            if type(module).forward is not InputPosition.forward
        }
        return {"": found[sides[0]]} if found and len({*inputs.values()}) == 1 else found

    # ----------------------------------------------------------------------------- inside attention

    def attention(self, stack: str, layer: int = 0) -> AttentionPosition:
        """The module of a self-attention; the encoder's for the stack ""."""
        return self.module.attention("decoder" if stack == "decoder" else "encoder", layer)

    def depth(self, stack: str) -> int:
        return self.model.n_decoder_layers if stack == "decoder" else self.model.n_encoder_layers

    def layers(self, stack: str) -> list[AttentionPosition]:
        """The module of each layer of a stack; a single one if all layers share it."""
        modules = [self.attention(stack, layer) for layer in range(self.depth(stack))]
        return modules[:1] if len(set(modules)) == 1 else modules

    @torch.inference_mode()
    def beyond(self, stack: str, at: int | Tensor) -> dict[Cause, list[int]]:
        """The layers that do more than turn by position and add a bias, by what else decides.

        Found by trying two texts, the second with q and k twice as long. Without the bias, logits
        are four times as large unless "words" have a say, and those of `rotate` alone unless the
        "length" has one, as in dynamic NTK. The query is the last: the length is the longest.
        """
        exact, positions = replace(self, module=copy.deepcopy(self.module).double()), _whole(at)
        n, n_heads, causal = len(positions), self.model.n_heads, stack == "decoder"
        generator = torch.Generator().manual_seed(0)
        how: Any = {"dtype": torch.float64, "generator": generator}
        x = torch.randn(2, n, self.model.d_model, **how)
        qkv = torch.randn(1, n, 3, n_heads, self.model.head_dim, **how)
        qkv = torch.cat((qkv, 2 * qkv))
        places = Places(positions, positions, causal=causal)
        last = Places(positions[-1:], positions, causal=causal)
        found: dict[Cause, list[int]] = {"words": [], "length": []}
        for layer, module in enumerate(exact.layers(stack)):
            state = module.token_state(x)
            q, k, _ = module.rotate_heads(qkv, places, state)
            scale = module.logit_scale(self.model.head_dim, last)
            logits = scale * q[:, :, -1:] @ k.mT
            term = module.logit_term(q[:, :, -1:], k, last, state)
            if term is not None:
                logits = logits + term
            q, k, _ = (heads.transpose(1, 2) for heads in qkv[:1].unbind(2))
            q, k = module.rotate(q, positions, "query"), module.rotate(k, positions, "key")
            if module.needs_weights or not torch.allclose(logits[1], 4 * logits[0]):
                found["words"].append(layer)
            elif not torch.allclose(logits[0], (scale * q[:, :, -1:] @ k.mT)[0]):
                found["length"].append(layer)
        if len(exact.layers(stack)) == 1:  # it stands for all
            return {cause: [*range(self.depth(stack))] * len(own) for cause, own in found.items()}
        return found

    def decided_by(self, cause: Cause, at: Mapping[str, int | Tensor] | None = None) -> str:
        """Where the cause of `beyond` acts: "the encoder (layers 2, 3) and the decoder", or ""."""
        named, few = [], self.n_positions(None, 8)
        for stack in STACKS:
            layers = self.beyond(stack, few if at is None else at[stack])[cause]
            numbers = ", ".join(str(layer + 1) for layer in layers)
            some = f" (layer{'s' * (len(layers) > 1)} {numbers})"
            if layers:
                named.append(f"the {stack}{some if len(layers) < self.depth(stack) else ''}")
        return " and ".join(named)

    def reservations(self, n: int) -> str:
        """What else decides how n positions turn: the end of a title."""
        words = self.decided_by("words")
        length = self.decided_by("length", dict.fromkeys(STACKS, n))
        found = [f" (in {words} words matter too)"] * bool(words)
        found += [f" (in {length} a sentence of this length turns by other angles)"] * bool(length)
        return "".join(found)

    @property
    def elsewhere(self) -> str:
        """What it does besides adding to embeddings and turning by position: the end of a line."""
        biased, by_words = self.biases(self.n_positions(None, 8)), self.decided_by("words")
        hints = ["; `bias` draws what it adds to the logits"] * bool(biased)
        hints += [f"; what it does in {by_words} depends on the words too"] * bool(by_words)
        return "".join(hints)

    def turns(self, n: int) -> dict[str, np.ndarray]:
        """`rotation` of queries by stack."""
        found = {stack: self.rotation(stack, n) for stack in STACKS}
        if np.array_equal(found["encoder"], found["decoder"]):
            found = {"": found["encoder"]}
        return {stack: turned for stack, turned in found.items() if turned.size}

    def turning(self, stack: str) -> int:
        """The first layer whose queries turn."""
        return int((self.rotation(stack, 2) != 1).any((1, 2, 3)).argmax())

    def rotation(self, stack: str, at: int | Tensor, role: Role = "query") -> np.ndarray:
        """How each plane of a head turns with position: magnitude * exp(i angle), [L,H,T,P].

        A plane that rests is 1; P is 0 where none turns. L is 1 where all layers turn alike, which
        one position does not tell.
        """
        turned = [self._turned(module, _whole(at), role) for module in self.layers(stack)]
        most = max(planes.shape[2] for planes in turned)
        rests = [((0, 0), (0, 0), (0, most - planes.shape[2])) for planes in turned]
        whole = np.stack([np.pad(*each, constant_values=1) for each in zip(turned, rests)])
        alike = whole.shape[2] > 1 and (whole == whole[:1]).all()
        return whole[:1] if alike else whole

    @torch.inference_mode()
    def moves(self) -> bool:
        """Whether positions change queries or keys at all, by turning planes or otherwise."""
        at, roles = torch.arange(self.n_positions(None, 8)), get_args(Role)
        x = torch.ones(1, self.model.n_heads, len(at), self.model.head_dim, dtype=torch.float64)
        modules = itertools.chain(*map(self.layers, STACKS))
        return any(not torch.equal(m.rotate(x, at, role), x) for m in modules for role in roles)

    @torch.inference_mode()
    def _turned(self, module: AttentionPosition, positions: Tensor, role: Role) -> np.ndarray:
        """The planes of one layer that turn, [H,T,P].

        They are found by trial, so that any layout of pairs works: dimension a turns into dimension
        b. They are ordered by their first dimension, that is from fast to slow.
        """
        size = self.model.head_dim
        if module.widening > 1:  # not a turn of planes
            return np.empty((self.model.n_heads, len(positions), 0))
        basis = torch.eye(size, dtype=torch.float64)[:, None, None, :]
        basis = basis.expand(-1, self.model.n_heads, 1, -1)
        # Position 1: no frequency of a RoPE makes this a whole or half turn.
        images = module.rotate(basis, torch.tensor([1]), role)[:, :, 0].abs().sum(1)  # [from,to]
        strength, partner = images.fill_diagonal_(0).max(1)
        first = [a for a in range(size) if strength[a] > 0 and a < partner[a]]
        x = torch.zeros(1, self.model.n_heads, len(positions), size, dtype=torch.float64)
        x[..., first] = 1.0
        turned = module.rotate(x, positions, role)[0]
        return torch.complex(turned[..., first], turned[..., partner[first]]).numpy()

    @torch.inference_mode()
    def equal_vector_logits(self, stack: str, n: int) -> np.ndarray:
        """q.k / Dh of a query of ones at n-1 and keys of ones at distance k = 0 .. n-1: [n].

        In the first head of the first layer that turns. For a rotation by frequencies w_i this is
        the mean of cos(k w_i), as for any q = k with equally strong pairs; with the magnitudes of
        YaRN and xPos. Terms of the logits that depend on q and k count too; a bias does not.
        """
        module = copy.deepcopy(self.attention(stack, self.turning(stack))).double()
        positions, nothing = torch.arange(n), torch.zeros(1, n, self.model.d_model).double()
        ones = torch.ones(1, self.model.n_heads, n, self.model.head_dim, dtype=torch.float64)
        q = module.rotate(ones, positions, "query")[:, :, -1:]
        k = module.rotate(ones, positions, "key")
        logits = q @ k.mT
        places = Places(positions[-1:], positions, causal=True)
        term = module.logit_term(q, k, places, module.token_state(nothing))
        if term is not None:
            logits = logits + term / module.logit_scale(self.model.head_dim, places)
        return logits[0, 0, 0].flip(0).numpy() / self.model.head_dim

    @torch.inference_mode()
    def biases(self, at: int | Tensor, stacks: Sequence[str] = STACKS) -> dict[str, np.ndarray]:
        """What the `bias` of each layer adds to the scaled logits, [L,H,T,T] by stack.

        NaN where the mask forbids, 0 in a layer without. L is 1 where all layers share one module.
        Transformer-XL's v r, which positions alone decide too, is in its `logit_term` instead.
        """
        found, positions = {}, _whole(at)
        for stack in stacks:
            places = Places(positions, positions, causal=stack == "decoder")
            biases = [module.bias(places) for module in self.layers(stack)]
            if any(bias is not None for bias in biases):
                nothing = torch.zeros(1, self.model.n_heads, *[len(positions)] * 2).double()
                each = (nothing if bias is None else bias.double() for bias in biases)
                matrices = torch.cat([bias.expand_as(nothing) for bias in each])
                if places.mask is not None:
                    matrices = matrices.masked_fill(~places.mask, float("nan"))
                found[stack] = matrices.numpy()
        return found

    def shaw_tables(self) -> dict[tuple[str, tuple[int, ...]], dict[int, np.ndarray]]:
        """Shaw's vectors of the distances -clip .. clip by stack and shape, then by layer.

        The shape is [R,2*clip+1,Dh]. R is 1, those of keys, or 2 with those of values.
        """
        found: dict[tuple[str, tuple[int, ...]], dict[int, np.ndarray]] = {}
        for stack in STACKS:
            for layer, scaled in enumerate(self.layers(stack)):
                if isinstance(module := getattr(scaled, "inner", scaled), Shaw):
                    table = torch.stack([*module.parameters()]).detach().double().numpy()
                    found.setdefault((stack, table.shape), {})[layer] = table
        return found

    @torch.inference_mode()
    def encoded(self, ids: np.ndarray) -> np.ndarray:
        """The output of an encoder with random weights for tokens [T], always the same: [T,D]."""
        scheme, positions = copy.deepcopy(self.module).double(), self.positions("source", len(ids))
        with torch.random.fork_rng(devices=[]):
            torch.default_generator.manual_seed(0)  # not those of GPUs
            encoder = Encoder(self.model).double().eval()
            for weight in encoder.parameters():
                if weight.dim() > 1:
                    nn.init.normal_(weight, std=weight.shape[1] ** -0.5)
            embeddings = torch.randn(ids.max() + 1, self.model.d_model, dtype=torch.float64)
        x = scheme.input("source")(embeddings[ids][None], positions)
        padding = torch.zeros(1, len(ids), dtype=torch.bool)
        return encoder(x, scheme=scheme, positions=positions, padding=padding)[0].numpy()

    # ---------------------------------------------------------------------------------- projections

    def projections(self) -> dict[str, tuple[np.ndarray, np.ndarray]]:
        """W_q and W_k [D,D] (q = W_q x): none, random, and those of the first encoder layer."""
        size = self.model.d_model
        generator = torch.Generator().manual_seed(0)
        drawn = [torch.empty(size, size, dtype=torch.float64) for _ in range(2)]
        w_q, w_k = (nn.init.xavier_uniform_(w, generator=generator).numpy() for w in drawn)
        found = {"no projection": (np.eye(size), np.eye(size)), "random": (w_q, w_k)}
        if self.encoder is not None:
            ends = ("layers.0.self_attention.qkv_proj.weight", "layers.0.self_attn.in_proj_weight")
            weights = self.encoder.state_dict().items()
            [joint] = [weight for name, weight in weights if name.endswith(ends)]
            w_q, w_k, _ = joint.double().cpu().numpy().reshape(3, size, size)
            found["trained"] = (w_q, w_k)
        return found


def fresh_scheme(name: str, model: ModelConfig) -> Scheme:
    """The scheme of model.position at the start of a training, always the same.

    The caller's random state stays as it is.
    """
    with torch.random.fork_rng(devices=[]):
        torch.default_generator.manual_seed(0)  # not those of GPUs
        return Scheme(name, build_scheme(model).eval(), model)


def trained_scheme(loaded: LoadedRun) -> Scheme:
    """The scheme of a run's model."""
    model = loaded.config.model
    return Scheme(
        position_name(model.position) or model.position.kind,
        copy.deepcopy(loaded.model.scheme).cpu(),  # the model stays on its device
        model,
        trained=True,
        about=f" ({loaded.run.name}, {loaded.when})",
        encoder=loaded.model.encoder,
    )
