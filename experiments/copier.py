"""The copy task: its rows, the small encoder that learns them, and the variants of its positions.

The symbols before a mark are to be repeated after it: `7 2 4 <copy> _ _ _ _ _ _` -> `7 2 4 <copy> 7
2 4 _ _ _`. An encoder reads a row of fixed length and predicts all its tokens at once. The number n
of symbols varies, and each blank must find the token n + 1 places before it, which takes positions.
A decoder would not do: it would have to predict the symbols before the mark from earlier ones, and
they are drawn at random.
"""

from __future__ import annotations

import math
import re
import time
from dataclasses import dataclass, replace
from typing import Any, cast

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from configs import positions as config
from configs.position_names import POSITIONS
from configs.schema import Cosine, ModelConfig
from experiments.common import SSMAX, with_ssmax
from models.attention.tap import AttentionTap
from models.build import build_scheme
from models.masks import as_bias, causal_attn_mask
from models.positional_encodings.alibi import alibi_bias
from models.positional_encodings.base import AttentionPosition, AttentionScheme, Places
from models.transformer_backend import Encoder
from training.schedules import lr_factor


@dataclass(frozen=True, slots=True, kw_only=True)
class Task:
    """Sizes of the task, of the model and of its training."""

    length: int = 10  # tokens of a row, in training
    test_lengths: tuple[int, ...] = (10, 11, 12, 14, 16, 20)
    n_symbols: int = 10  # their ids come first, then that of the mark, then that of the blank
    n_test: int = 2000  # rows of each test length
    d_model: int = 32
    n_layers: int = 2
    d_ff: int = 64
    steps: int = 2000
    batch_size: int = 64
    lr: float = 3e-3  # reached after a tenth of the steps; then half a cosine down to 0


def make_rows(n: int, length: int, task: Task, generator: torch.Generator) -> tuple[Tensor, Tensor]:
    """n rows of `length` tokens and what they should become, [n,length] each.

    1 to length-3 random symbols, the mark, and blanks (two or more) to the end. In the target the
    symbols are repeated after the mark, as far as there is room.
    """
    n_symbols = torch.randint(1, length - 2, (n, 1), generator=generator)
    place, mark, blank = torch.arange(length), task.n_symbols, task.n_symbols + 1
    rows = torch.randint(task.n_symbols, (n, length), generator=generator)
    rows = torch.where(place < n_symbols, rows, blank)
    rows = torch.where(place == n_symbols, mark, rows)
    origin = place - n_symbols - 1  # of the token that is repeated here
    copied = rows.gather(1, origin.clamp(min=0))
    return rows, torch.where((origin >= 0) & (origin < n_symbols), copied, rows)


def accuracies(predicted: Tensor, rows: Tensor, targets: Tensor, task: Task) -> tuple[float, float]:
    """(exact, token): the share of rows that are right everywhere, and of right repeated symbols.

    Tokens that can be read off (symbols, mark) or stay blank count only for the first.
    """
    right, blank = predicted == targets, task.n_symbols + 1
    repeated = (rows == blank) & (targets != blank)
    return right.all(dim=1).double().mean().item(), right[repeated].double().mean().item()


@dataclass(frozen=True, slots=True, kw_only=True)
class Variant:
    """A position scheme in a model of n_heads. causal: the encoder sees no later token.

    slopes: a bias -slope |i - j| for each head instead of the scheme, ALiBi's with other slopes.
    concatenated: the scheme's vectors are concatenated with the embeddings, not added, and a linear
    map brings both back to d_model.
    """

    position: config.Position
    n_heads: int = 4
    slopes: tuple[float, ...] | None = None
    causal: bool = False
    concatenated: bool = False


# xPos, CoPE and FoX are for causal attention alone: an encoder has their partner instead.
SCHEMES = {
    name: Variant(position=position)
    for name, position in POSITIONS.items()
    if not isinstance(position, (config.XPos, config.Cope, config.Fox))
}
# Do heads, slopes, symmetry or the causal mask make ALiBi fail or succeed here?
ALIBI_VARIANTS = {
    "alibi_1_head": Variant(position=config.Alibi(), n_heads=1),
    "alibi_2_heads": Variant(position=config.Alibi(), n_heads=2),
    "alibi": SCHEMES["alibi"],
    "alibi_8_heads": Variant(position=config.Alibi(), n_heads=8),
    "alibi_1_head_slope_half": Variant(position=config.Alibi(), n_heads=1, slopes=(0.5,)),
    "alibi_asymmetric": SCHEMES["alibi_asymmetric"],
    "alibi_causal": Variant(position=config.Alibi(), causal=True),
    "none_causal": Variant(position=config.NoPosition(), causal=True),
    "rope_1_head": Variant(position=config.Rope(), n_heads=1),
}
# Does it matter that positions are added, and not concatenated?
CONCATENATED = {
    f"{name}_concatenated": Variant(position=POSITIONS[name], concatenated=True)
    for name in ("sinusoidal", "learnable")
}
PLAIN = {**SCHEMES, **CONCATENATED, **ALIBI_VARIANTS}
# Does sharper attention over more keys help beyond the trained length? ("ssmax": RoPE with it)
WITH_SSMAX = {
    name + SSMAX: Variant(position=with_ssmax(variant.position))
    for name, variant in SCHEMES.items()
    if isinstance(variant.position, config.Scheme | config.Randomized)  # no kind of your own
}
VARIANTS = PLAIN | WITH_SSMAX


def fit_to_task(position: config.Position, task: Task) -> config.Position:
    """The scheme with its lengths set to those of the task, where it has any."""
    match position:
        case config.Rope(scaling=config.DynamicNtkScaling() | config.YarnScaling() as scaling):
            return replace(position, scaling=replace(scaling, trained_length=task.length))
        case config.Fope():
            return replace(position, trained_length=max(7, task.length))  # at least one wave
        case config.Combined(input=config.Learnable() as rows):
            return replace(position, input=replace(rows, max_positions=task.length))
        case config.Randomized():
            longest = max(task.test_lengths)
            return replace(position, spread=2 * longest, max_positions=longest)
        case config.Ssmax():
            return replace(position, scheme=cast(Any, fit_to_task(position.scheme, task)))
        case _ if getattr(position, "max_positions", None) is not None:  # the rows of a table
            return replace(cast(Any, position), max_positions=task.length)
    return position


class Control(AttentionPosition):
    """A variant's slopes or causal mask in place of, or over, a scheme that is a bias alone."""

    def __init__(self, variant: Variant, inner: AttentionPosition) -> None:
        super().__init__()
        self.variant, self.inner = variant, inner

    def bias(self, places: Places) -> Tensor | None:
        bias = self.inner.bias(places)
        if self.variant.slopes is not None:
            slopes = torch.tensor(self.variant.slopes)
            bias = alibi_bias(places.distance, slopes, causal=False)
        if self.variant.causal:
            mask = as_bias(causal_attn_mask(places.q_positions, places.k_positions), torch.float32)
            bias = mask if bias is None else bias + mask
        return bias


class Concatenated(nn.Module):
    """W [x; p] in place of x + p, for an input scheme that gives p [T,D]."""

    def __init__(self, inner: nn.Module, d_model: int) -> None:
        super().__init__()
        self.inner, self.map = inner, nn.Linear(2 * d_model, d_model, bias=False)

    def forward(self, x: Tensor, positions: Tensor) -> Tensor:
        p = self.inner(torch.zeros_like(x), positions)
        return self.map(torch.cat([x, p], dim=-1))


class Copier(nn.Module):
    """Embedding, the project's encoder, and a projection to the vocabulary."""

    def __init__(self, variant: Variant, task: Task) -> None:
        super().__init__()
        self.n_layers = task.n_layers
        self.embedding = nn.Embedding(task.n_symbols + 2, task.d_model)
        nn.init.normal_(self.embedding.weight, std=task.d_model**-0.5)
        sizes = ModelConfig(
            position=fit_to_task(variant.position, task),
            d_model=task.d_model,
            n_heads=variant.n_heads,
            n_encoder_layers=task.n_layers,
            n_decoder_layers=task.n_layers,
            d_ff=task.d_ff,
            dropout=0.0,
        )
        self.encoder = Encoder(sizes)
        self.out = nn.Linear(task.d_model, task.n_symbols + 2)
        # Last, so that all schemes of a seed start from the same weights elsewhere.
        self.scheme = build_scheme(sizes)
        if variant.slopes is not None or variant.causal:
            control = Control(variant, self.scheme.attention("encoder", 0))
            self.scheme = AttentionScheme(encoder=[control])

        self.input: nn.Module = self.scheme.input("source")
        if variant.concatenated:
            self.input = Concatenated(self.input, task.d_model)

    @property
    def n_position_parameters(self) -> int:
        """Numbers that the scheme trains for this encoder."""
        found = nn.ModuleList([self.scheme, self.input]).named_parameters()
        return sum(p.numel() for name, p in found if not re.search(r"\.(decoder|target)", name))

    def forward(self, rows: Tensor, tap: AttentionTap | None = None) -> Tensor:
        """rows [B,T] -> logits [B,T,V]. A blank is a token like any other, not padding."""
        positions = self.scheme.positions("source", 0, rows.shape[1], rows.device)
        x = self.embedding(rows) * math.sqrt(self.embedding.embedding_dim)
        x = self.input(x, positions)
        padding = torch.zeros_like(rows, dtype=torch.bool)
        places = {"scheme": self.scheme, "positions": positions, "padding": padding}
        return self.out(self.encoder(x, **places, tap=tap))


def train(variant: Variant, seed: int, task: Task) -> Copier:
    """A trained model. The seed decides its initial weights and its training rows."""
    torch.manual_seed(seed)
    generator = torch.Generator().manual_seed(seed)
    model = Copier(variant, task)
    optimizer = torch.optim.Adam(model.parameters(), lr=task.lr, fused=True)
    schedule = Cosine(lr=task.lr, warmup_steps=math.ceil(task.steps / 10))
    factor = lr_factor(schedule, total_steps=task.steps)
    scheduler = torch.optim.lr_scheduler.LambdaLR(optimizer, factor)
    for _ in range(task.steps):
        rows, targets = make_rows(task.batch_size, task.length, task, generator)
        loss = F.cross_entropy(model(rows).flatten(0, 1), targets.flatten())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        scheduler.step()
    return model.eval()


def train_and_test(variant: Variant, seed: int, task: Task) -> dict[str, Any]:
    """Accuracies by test length, and the seconds of CPU time taken.

    The test rows are the same for all seeds. Test lengths that the scheme cannot place are absent.
    """
    start = time.process_time()
    model = train(variant, seed, task)
    limit = model.scheme.max_length("source")
    exact, token = {}, {}
    for length in task.test_lengths:
        if limit is None or length <= limit:
            generator = torch.Generator().manual_seed(length)
            rows, targets = make_rows(task.n_test, length, task, generator)
            with torch.inference_mode():
                predicted = model(rows).argmax(dim=-1)
            exact[str(length)], token[str(length)] = accuracies(predicted, rows, targets, task)
    seconds = round(time.process_time() - start, 1)
    return {"seed": seed, "exact": exact, "token": token, "seconds": seconds}
