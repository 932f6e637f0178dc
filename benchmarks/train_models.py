"""The models of the training benchmark: ours with its update, others in a plain loop."""

import dataclasses
import importlib
import logging
import math
from argparse import Namespace
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, cast
from unittest import mock

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from benchmarks.common import BOS, CPU, DTYPES, EOS, PAD, Size, Vocabulary
from checkpoints.transformers_export import their_shape
from configs.positions import Position, Sinusoidal
from configs.schema import Config, Constant, ModelConfig, OptimConfig, TrainConfig
from data.batching import Batch
from models.positional_encodings.sinusoidal import sinusoid_table
from tokenizer.base import BaseTokenizer
from training.engine import create_trainer
from training.graphs import graphs_wanted
from training.prepare import build_learner
from training.schedules import build_optimizer
from utils.errors import UserError
from utils.machine import autocast

LONGEST = 120  # tokens of a sentence, either side
DROPOUT = LABEL_SMOOTHING = 0.1
GRAD_CLIP = 1.0
OPTIM = OptimConfig(
    optimizer="adamw",
    weight_decay=0.01,
    schedule=Constant(lr=1e-4),
    grad_clip=GRAD_CLIP,
    label_smoothing=LABEL_SMOOTHING,
)


@dataclass(frozen=True, slots=True)
class Setup:
    """The settings that all models of one comparison share."""

    size: Size
    device: torch.device = CPU
    precision: str = "float32"
    threads: int = 1
    rounds: int = 1
    warmup: int = 0
    steps: int = 1  # updates in a round
    seed: int = 0
    compile: bool = False

    @property
    def dtype(self) -> torch.dtype:
        return DTYPES[self.precision]


class Ours:
    """Our model with one position scheme and the update of training/engine.py."""

    def __init__(
        self,
        setup: Setup,
        *,
        position: Position = Sinusoidal(),
        inner_dropout: float = 0.0,
        graphs: bool = False,
    ) -> None:
        computing: dict[str, Any] = {"device": setup.device, "dtype": setup.dtype}
        model = ModelConfig(
            **setup.size.shape(),
            position=position,
            dropout=DROPOUT,
            attention_dropout=inner_dropout,
            activation_dropout=inner_dropout,
        )
        train = TrainConfig(compile=setup.compile, cuda_graphs=graphs, seed=setup.seed)
        config = Config(model=model, optim=OPTIM, train=train)
        tokenizer = cast(BaseTokenizer, Vocabulary(setup.size.vocab_size))
        learner = build_learner(config, tokenizer, **computing, total_steps=10**6)
        self.model, self.scaler = learner.model, learner.scaler
        self.graphs = graphs_wanted(config, setup.device)
        options: dict[str, Any] = {"seed": setup.seed, "graphs": self.graphs}
        self.trainer = create_trainer(learner, OPTIM, **computing, **options)
        self.trainer.logger.setLevel(logging.CRITICAL)  # some peers enable all messages

    def train(self, batches: Sequence[Batch]) -> None:
        self.trainer.run([[batch] for batch in batches], max_epochs=1)


class Peer:
    """Another library's model, ids to logits [B,T,V], in the usual training loop."""

    def __init__(self, setup: Setup, build: Callable[[Size], nn.Module]) -> None:
        self.device, self.dtype = setup.device, setup.dtype
        torch.manual_seed(setup.seed)
        self.model = build(setup.size).to(self.device).train()
        if setup.compile:
            self.model.compile(dynamic=True)
        self.scaler = torch.amp.GradScaler(self.device.type, enabled=self.dtype == torch.float16)
        self.optimizer = build_optimizer(self.model.parameters(), OPTIM, ModelConfig())

    def train(self, batches: Sequence[Batch]) -> None:
        for batch in batches:
            batch = batch.to(self.device)
            with autocast(self.device, self.dtype):
                logits = self.model(batch.src, batch.tgt_in).flatten(0, 1)
                targets = batch.tgt_out.flatten()
                loss = F.cross_entropy(
                    logits, targets, ignore_index=PAD, label_smoothing=LABEL_SMOOTHING
                )
            self.optimizer.zero_grad()
            self.scaler.scale(loss).backward()
            self.scaler.unscale_(self.optimizer)
            nn.utils.clip_grad_norm_(self.model.parameters(), GRAD_CLIP)
            self.scaler.step(self.optimizer)
            self.scaler.update()
            # Read at every step, as in ours and in every loop that shows its loss.
            if not math.isfinite(loss.item()):
                raise UserError("a peer's loss is no longer a number: its figures mean nothing")


def marian_model(config: ModelConfig, tokenizer: BaseTokenizer, **settings: Any) -> Any:
    """A MarianMTModel like our post-norm model. Raises ImportError without transformers."""
    library: Any = importlib.import_module("transformers")
    theirs = library.MarianConfig(**their_shape(config, tokenizer), **settings)
    return library.MarianMTModel(theirs)


class MarianPeer(nn.Module):
    def __init__(self, size: Size) -> None:
        super().__init__()
        self.inner = marian_model(
            ModelConfig(**size.shape(), norm="post", dropout=DROPOUT),
            cast(BaseTokenizer, Vocabulary(size.vocab_size)),
            max_position_embeddings=LONGEST,
            pad_token_id=PAD,
            eos_token_id=EOS,
            forced_eos_token_id=EOS,
            decoder_start_token_id=BOS,
        )

    def forward(self, src: Tensor, tgt_in: Tensor) -> Tensor:
        mask = src != PAD
        return self.inner(src, mask, decoder_input_ids=tgt_in, use_cache=False).logits


class TorchPeer(nn.Module):
    """nn.Transformer with the embeddings, sinusoids and masks of PyTorch's translation tutorial."""

    def __init__(self, size: Size) -> None:
        super().__init__()
        d = size.d_model
        self.embedding = nn.Embedding(size.vocab_size, d, padding_idx=PAD)
        nn.init.normal_(self.embedding.weight, std=d**-0.5)
        table = sinusoid_table(torch.arange(LONGEST), d, dtype=torch.float32)
        self.register_buffer("positions", table, persistent=False)
        self.dropout = nn.Dropout(DROPOUT)
        n = size.n_layers
        self.inner = nn.Transformer(
            d, size.n_heads, n, n, size.d_ff, dropout=DROPOUT, batch_first=True
        )
        self.output = nn.Linear(d, size.vocab_size, bias=False)
        self.output.weight = self.embedding.weight

    def embed(self, ids: Tensor) -> Tensor:
        table = cast(Tensor, self.positions)[: ids.shape[1]]
        return self.dropout(self.embedding(ids) * math.sqrt(self.inner.d_model) + table)

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
        sides = {f"{name}_{key}": value for name in ("enc", "dec") for key, value in side.items()}
        whole = {"dim": size.d_model, "tie_token_emb": True, "pad_value": PAD}
        self.inner = library.XTransformer(**whole, **sides)
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
        config = {"encoder": stack, "decoder": stack, "tied_embeddings": True, "tied_softmax": True}
        self.inner = library.build_model(config, *[Vocabulary(size.vocab_size)] * 2)

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
        with mock.patch("dataclasses.dataclass", hashable):
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
            if name.endswith(("_weight", "_bias")):  # copies for inference, without gradients
                parameter.requires_grad_(False)

    def forward(self, src: Tensor, tgt_in: Tensor) -> Tensor:
        logits, _ = self.inner(src, (src != PAD).sum(-1), tgt_in, return_all_hiddens=False)
        return logits


def hashable(cls: type | None = None, /, real: Any = dataclasses.dataclass, **options: Any) -> Any:
    """fairseq 0.12's configs are each other's defaults, which Python 3.11 wants hashable."""
    if cls is None:
        return partial(hashable, **options)
    if cls.__module__.startswith(("fairseq", "hydra")) and "__hash__" not in vars(cls):
        options["unsafe_hash"] = True
    return real(cls, **options)


def ours_graphs(setup: Setup) -> Ours:
    """Raises UserError without a GPU."""
    if setup.device.type != "cuda":
        raise UserError("CUDA graphs need a GPU")
    return Ours(setup, graphs=True)


Model = Ours | Peer
RESIDUAL = "dropout: embeddings and residual branches"
EVERYWHERE = f"{RESIDUAL}, attention weights and activations"
# How to make each, and what a reader has to know to compare it. An ImportError leaves it out.
PEERS: dict[str, tuple[type[nn.Module], str]] = {
    # First those with the dropout of ours_dropout, so that they are in its group.
    "torch": (TorchPeer, f"nn.Transformer: post-norm; output tied, without bias; {EVERYWHERE}"),
    "joeynmt": (JoeyPeer, f"pre-norm; {EVERYWHERE}"),
    "marian": (MarianPeer, f"MarianMTModel: post-norm, no norm at a stack's end; {RESIDUAL}"),
    "x_transformers": (
        XTransformersPeer,
        "XTransformer: pre-norm, fused attention, no biases in attention and norms; "
        "dropout: embeddings, activations",
    ),
    "fairseq": (FairseqPeer, f"TransformerModelBase: pre-norm; {RESIDUAL}"),
}
MODELS: dict[str, tuple[Callable[[Setup], Model], str]] = {
    "ours": (Ours, f"pre-norm; {RESIDUAL}"),
    "ours_dropout": (partial(Ours, inner_dropout=DROPOUT), f"ours; {EVERYWHERE}, as in torch's"),
    **{name: (partial(Peer, build=build), about) for name, (build, about) in PEERS.items()},
    "ours_graphs": (
        ours_graphs,
        "ours; with every batch captured as a CUDA graph before it is timed",
    ),
}


def n_parameters(model: Model) -> int:
    """Trained parameters, each counted once."""
    return sum(p.numel() for p in model.model.parameters() if p.requires_grad)
