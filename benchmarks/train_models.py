"""The models of a training benchmark: ours with its update, other libraries' in a plain loop."""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import importlib
import logging
import math
import time
from argparse import Namespace
from collections.abc import Callable, Iterator, Sequence
from statistics import median
from typing import Any, cast

import torch
import torch.nn.functional as F
from ignite.engine import Engine, Events
from torch import Tensor, nn

from benchmarks import common
from benchmarks.train_setup import BOS, EOS, LONGEST, PAD, UNK, Batches, Setup, Size
from configs.positions import Position, Sinusoidal
from configs.schema import Config, Constant, ModelConfig, OptimConfig, TrainConfig
from data.batching import Batch, collate
from tokenizer.base import BaseTokenizer
from training.engine import create_trainer
from training.prepare import build_learner
from training.schedules import build_optimizer
from utils.errors import UserError
from utils.machine import autocast

DROPOUT = 0.1
OPTIM = OptimConfig(
    optimizer="adamw",
    weight_decay=0.01,
    schedule=Constant(lr=1e-4),
    grad_clip=1.0,
    label_smoothing=0.1,
)
SINUSOIDAL = Sinusoidal()


class Vocabulary:
    """A joint vocabulary without words: what our model, joeynmt and fairseq ask of theirs."""

    shared_vocab = True
    pad_id = pad_index = PAD
    unk_index, bos_index, eos_index, sep_index = UNK, BOS, EOS, None
    specials: tuple[str, ...] = ()
    lang_tags: tuple[str, ...] = ()

    def __init__(self, size: int) -> None:
        self.src_vocab_size = self.tgt_vocab_size = size

    def __len__(self) -> int:
        return self.src_vocab_size

    def pad(self) -> int:
        return PAD


# --------------------------------------------------------------------------------------------- ours


class Ours:
    """Our model under one position scheme with the update of training/engine.py."""

    def __init__(
        self, setup: Setup, *, position: Position = SINUSOIDAL, inner_dropout: float = 0.0
    ) -> None:
        size, self.device = setup.size, torch.device(setup.device)
        model = ModelConfig(
            **size.shape(),
            position=position,
            dropout=DROPOUT,
            attention_dropout=inner_dropout,
            activation_dropout=inner_dropout,
        )
        config = Config(
            model=model, optim=OPTIM, train=TrainConfig(compile=setup.compile, seed=setup.seed)
        )
        tokenizer = cast(BaseTokenizer, Vocabulary(size.vocab_size))
        self.learner = build_learner(
            config, tokenizer, device=self.device, dtype=setup.dtype, total_steps=10**6
        )
        self.model: nn.Module = self.learner.model
        self.trainer = self._trainer(setup, self.learner.scaler)
        self.stopwatch = Stopwatch(self.device)
        self.timed_trainer = self.stopwatch.attach(self._trainer(setup, self.stopwatch))

    def _trainer(self, setup: Setup, scaler: torch.amp.GradScaler) -> Engine:
        trainer = create_trainer(
            dataclasses.replace(self.learner, scaler=scaler),
            OPTIM,
            pad_id=PAD,
            device=self.device,
            dtype=setup.dtype,
            seed=setup.seed,
        )
        trainer.logger.setLevel(logging.CRITICAL)  # some peers switch on all libraries' messages
        return trainer

    def train(self, batches: Sequence[Batch]) -> None:
        self.trainer.run([[batch] for batch in batches], max_epochs=1)

    def split_step(self, batches: Batches) -> dict[str, float]:
        """Median milliseconds of the parts of a step, over the batches of all rounds."""
        data = []
        for number in range(-batches.warmup, len(batches.made) // batches.steps - batches.warmup):
            for rows in batches.rows[batches.places(number)]:
                start = time.perf_counter()
                collate(batches.split, rows, pad_id=PAD, bos_id=BOS)
                data.append(time.perf_counter() - start)
            self.timed_trainer.run([[batch] for batch in batches.of_round(number)], max_epochs=1)
        parts = {"data": data, **self.stopwatch.parts}
        return {part: 1e3 * median(seconds) for part, seconds in parts.items()}


class Stopwatch(torch.amp.GradScaler):
    """A scaler that scales nothing, and notes the time.

    The update calls it where the forward pass (with the loss) and the backward pass end; the rest
    of the update is clipping, the optimizer and reading the figures.
    """

    def __init__(self, device: torch.device) -> None:
        super().__init__(device.type, enabled=False)
        self.on = device
        self.parts: dict[str, list[float]] = {"forward": [], "backward": [], "optimizer": []}
        self.since = 0.0

    def attach(self, engine: Engine) -> Engine:
        engine.add_event_handler(Events.ITERATION_STARTED, self._start)
        engine.add_event_handler(Events.ITERATION_COMPLETED, lambda: self._end("optimizer"))
        return engine

    def scale(self, outputs: Any) -> Any:
        self._end("forward")
        return outputs

    def unscale_(self, optimizer: torch.optim.Optimizer) -> None:
        self._end("backward")

    def _start(self) -> None:
        common.synchronize(self.on)
        self.since = time.perf_counter()

    def _end(self, part: str) -> None:
        common.synchronize(self.on)
        now = time.perf_counter()
        self.parts[part].append(now - self.since)
        self.since = now


# -------------------------------------------------------------------------------------------- peers


class Peer:
    """Another library's model, ids to logits [B,T,V], in the loop that people usually write."""

    def __init__(self, setup: Setup, build: Callable[[Size], nn.Module]) -> None:
        self.device, self.dtype = torch.device(setup.device), setup.dtype
        torch.manual_seed(setup.seed)
        self.model = build(setup.size).to(self.device).train()
        self.optimizer = build_optimizer(self.model.parameters(), OPTIM, ModelConfig())
        assert OPTIM.grad_clip is not None
        self.grad_clip = OPTIM.grad_clip

    def train(self, batches: Sequence[Batch]) -> None:
        for batch in batches:
            batch = batch.to(self.device)
            with autocast(self.device, self.dtype):
                logits = self.model(batch.src, batch.tgt_in)
                loss = F.cross_entropy(
                    logits.flatten(0, 1),
                    batch.tgt_out.flatten(),
                    ignore_index=PAD,
                    label_smoothing=OPTIM.label_smoothing,
                )
            self.optimizer.zero_grad()
            loss.backward()
            nn.utils.clip_grad_norm_(self.model.parameters(), self.grad_clip)
            self.optimizer.step()
            # Read at every step, as ours and every loop that shows its loss.
            if not math.isfinite(loss.item()):
                raise UserError("a peer's loss is no longer a number: its figures mean nothing")


def marian_settings(config: ModelConfig, vocab_size: int) -> dict[str, Any]:
    """The shape of a model as transformers' MarianConfig has it."""
    return {
        "vocab_size": vocab_size,
        "d_model": config.d_model,
        "encoder_layers": config.n_encoder_layers,
        "decoder_layers": config.n_decoder_layers,
        "encoder_attention_heads": config.n_heads,
        "decoder_attention_heads": config.n_heads,
        "encoder_ffn_dim": config.d_ff,
        "decoder_ffn_dim": config.d_ff,
        "activation_function": config.activation,
        "scale_embedding": True,
    }


class MarianPeer(nn.Module):
    def __init__(self, size: Size) -> None:
        super().__init__()
        library: Any = importlib.import_module("transformers")
        ids = {"pad_token_id": PAD, "eos_token_id": EOS, "decoder_start_token_id": BOS}
        settings = marian_settings(ModelConfig(**size.shape()), size.vocab_size)
        self.inner = library.MarianMTModel(
            library.MarianConfig(
                **settings,
                **ids,
                dropout=DROPOUT,
                max_position_embeddings=LONGEST,
                forced_eos_token_id=EOS,
            )
        )

    def forward(self, src: Tensor, tgt_in: Tensor) -> Tensor:
        out = self.inner(
            input_ids=src, attention_mask=src != PAD, decoder_input_ids=tgt_in, use_cache=False
        )
        return out.logits


class TorchPeer(nn.Module):
    """nn.Transformer with the embeddings, sinusoids and masks of PyTorch's translation tutorial."""

    def __init__(self, size: Size) -> None:
        super().__init__()
        d = size.d_model
        self.embedding = nn.Embedding(size.vocab_size, d, padding_idx=PAD)
        nn.init.normal_(self.embedding.weight, std=d**-0.5)
        angles = torch.arange(LONGEST)[:, None] * torch.exp(
            torch.arange(0, d, 2) * (-math.log(10000.0) / d)
        )
        table = torch.stack((angles.sin(), angles.cos()), dim=-1).flatten(1)
        self.register_buffer("positions", table, persistent=False)
        self.dropout = nn.Dropout(DROPOUT)
        self.inner = nn.Transformer(
            d_model=d,
            nhead=size.n_heads,
            num_encoder_layers=size.n_layers,
            num_decoder_layers=size.n_layers,
            dim_feedforward=size.d_ff,
            dropout=DROPOUT,
            batch_first=True,
        )
        self.output = nn.Linear(d, size.vocab_size, bias=False)
        self.output.weight = self.embedding.weight

    def embed(self, ids: Tensor) -> Tensor:
        table = cast(Tensor, self.positions)
        return self.dropout(
            self.embedding(ids) * math.sqrt(self.inner.d_model) + table[: ids.shape[1]]
        )

    def forward(self, src: Tensor, tgt_in: Tensor) -> Tensor:
        n = tgt_in.shape[1]
        hidden = self.inner(
            self.embed(src),
            self.embed(tgt_in),
            tgt_mask=torch.ones(n, n, dtype=torch.bool, device=src.device).triu(1),
            src_key_padding_mask=src == PAD,
            tgt_key_padding_mask=tgt_in == PAD,
            memory_key_padding_mask=src == PAD,
        )
        return self.output(hidden)


class XTransformersPeer(nn.Module):
    def __init__(self, size: Size) -> None:
        super().__init__()
        library: Any = importlib.import_module("x_transformers")
        side = {
            "num_tokens": size.vocab_size,
            "max_seq_len": LONGEST,
            "depth": size.n_layers,
            "heads": size.n_heads,
            "attn_dim_head": size.d_model // size.n_heads,
            "attn_flash": True,
            "ff_mult": size.d_ff / size.d_model,
            "ff_custom_activation": nn.ReLU(),
            "ff_dropout": DROPOUT,
            "emb_dropout": DROPOUT,
            "scaled_sinu_pos_emb": True,
        }
        sides = {
            f"{prefix}_{key}": value for prefix in ("enc", "dec") for key, value in side.items()
        }
        self.inner = library.XTransformer(
            dim=size.d_model, tie_token_emb=True, pad_value=PAD, **sides
        )
        self.inner.decoder.net.to_logits.weight = self.inner.encoder.token_emb.emb.weight

    def forward(self, src: Tensor, tgt_in: Tensor) -> Tensor:
        mask = src != PAD
        memory = self.inner.encoder(src, mask=mask, return_embeddings=True)
        return self.inner.decoder.net(tgt_in, context=memory, context_mask=mask)


class JoeyPeer(nn.Module):
    def __init__(self, size: Size) -> None:
        super().__init__()
        library: Any = importlib.import_module("joeynmt.model")
        stack = {
            "type": "transformer",
            "num_layers": size.n_layers,
            "num_heads": size.n_heads,
            "hidden_size": size.d_model,
            "ff_size": size.d_ff,
            "dropout": DROPOUT,
            "layer_norm": "pre",
            "embeddings": {"embedding_dim": size.d_model, "scale": True, "dropout": DROPOUT},
        }
        tied = {"tied_embeddings": True, "tied_softmax": True}
        vocabulary = Vocabulary(size.vocab_size)
        self.inner = library.build_model(
            {"encoder": stack, "decoder": stack, **tied}, vocabulary, vocabulary
        )

    def forward(self, src: Tensor, tgt_in: Tensor) -> Tensor:
        src_mask = (src != PAD).unsqueeze(1)
        memory, *_ = self.inner(
            return_type="encode", src=src, src_length=src_mask.sum(-1), src_mask=src_mask
        )
        logits, *_ = self.inner(
            return_type="decode",
            encoder_output=memory,
            encoder_hidden=None,
            src_mask=src_mask,
            trg_input=tgt_in,
            unroll_steps=tgt_in.shape[1],
            trg_mask=(tgt_in != PAD).unsqueeze(1),
        )
        return logits


class FairseqPeer(nn.Module):
    def __init__(self, size: Size) -> None:
        super().__init__()
        with hashable_dataclasses():
            library: Any = importlib.import_module("fairseq.models.transformer")
        config = library.TransformerConfig(dropout=DROPOUT, share_all_embeddings=True)
        config.max_source_positions = config.max_target_positions = LONGEST
        for stack in (config.encoder, config.decoder):
            stack.embed_dim, stack.ffn_embed_dim = size.d_model, size.d_ff
            stack.layers, stack.attention_heads = size.n_layers, size.n_heads
            stack.normalize_before = True
        config.decoder.input_dim = config.decoder.output_dim = size.d_model
        vocabulary = Vocabulary(size.vocab_size)
        task = Namespace(source_dictionary=vocabulary, target_dictionary=vocabulary)
        self.inner = library.TransformerModelBase.build_model(config, task)
        for name, parameter in self.inner.named_parameters():
            if name.endswith(("_weight", "_bias")):  # copies for inference, without a gradient
                parameter.requires_grad_(False)

    def forward(self, src: Tensor, tgt_in: Tensor) -> Tensor:
        logits, _ = self.inner(src, (src != PAD).sum(-1), tgt_in, return_all_hiddens=False)
        return logits


@contextlib.contextmanager
def hashable_dataclasses() -> Iterator[None]:
    """fairseq 0.12's configs are each other's defaults, which Python 3.11 takes if hashable."""
    real = dataclasses.dataclass

    def hashable(cls: type | None = None, **options: Any) -> Any:
        if cls is None:
            return functools.partial(hashable, **options)
        theirs = cls.__module__.partition(".")[0] in ("fairseq", "hydra")
        add = theirs and "__hash__" not in vars(cls)
        return real(cls, **(options | {"unsafe_hash": True} if add else options))

    dataclasses.dataclass = hashable
    try:
        yield
    finally:
        dataclasses.dataclass = real


Model = Ours | Peer
RESIDUAL = "embeddings and residual branches"
EVERYWHERE = f"{RESIDUAL}, attention weights and activations"


def ours_dropout(setup: Setup) -> Ours:
    return Ours(setup, inner_dropout=DROPOUT)


def peer(build: Callable[[Size], nn.Module]) -> Callable[[Setup], Peer]:
    return lambda setup: Peer(setup, build)


# How each model is made, and what a reader has to know to compare it. An ImportError leaves it out.
MODELS: dict[str, tuple[Callable[[Setup], Model], str]] = {
    "ours": (Ours, f"pre-norm; dropout: {RESIDUAL}"),
    "ours_dropout": (ours_dropout, f"ours; dropout: {EVERYWHERE}, as in torch's"),
    "marian": (
        peer(MarianPeer),
        "transformers' MarianMTModel: post-norm, no norm at the end of a stack; "
        f"dropout: {RESIDUAL}",
    ),
    "torch": (
        peer(TorchPeer),
        "torch.nn.Transformer, the tutorial's masks: post-norm; output tied, without bias; "
        f"dropout: {EVERYWHERE}",
    ),
    "x_transformers": (
        peer(XTransformersPeer),
        "XTransformer, fused attention, pre-norm, no biases in attention and norms; "
        "dropout: embeddings, activations",
    ),
    "joeynmt": (peer(JoeyPeer), f"pre-norm; dropout: {EVERYWHERE}"),
    "fairseq": (peer(FairseqPeer), f"TransformerModelBase, pre-norm; dropout: {RESIDUAL}"),
}


def build_models(names: Sequence[str], setup: Setup) -> tuple[dict[str, Model], dict[str, str]]:
    """The models that can be made here, and why the others cannot."""
    models: dict[str, Model] = {}
    left_out: dict[str, str] = {}
    for name in names:
        make, _ = MODELS[name]
        try:
            models[name] = make(setup)
        except ImportError as error:
            left_out[name] = str(error)
    return models, left_out


def n_parameters(model: Model) -> int:
    """Trained parameters, each counted once."""
    return sum(p.numel() for p in model.model.parameters() if p.requires_grad)
