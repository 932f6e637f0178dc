"""The translation model: embeddings, encoder, decoder and output projection."""

import math
from typing import Any, cast

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from configs.schema import ModelConfig
from models.attention.tap import AttentionTap
from models.decode_state import Memory
from models.dropout import Dropout, JointDropout
from models.linear import linear
from models.masks import key_padding_mask
from models.positional_encodings.base import PositionScheme, Side
from utils.errors import UserError

# Columns of hidden states and output weight for a bias: one, and zeros that keep the width a
# multiple of 8, for the tensor cores of a GPU.
_BIAS_COLUMNS = 8


class TranslationTransformer(nn.Module):
    """Encoder-decoder over token ids (Vaswani et al. 2017, section 3).

    `encoder` and `decoder` are built modules with the signatures of `transformer_backend.Encoder`
    and `Decoder` (`transformer_ori.py` offers the same on torch.nn.Transformer). Source sentences
    end in EOS, so that no row of a batch is all padding.
    """

    def __init__(
        self,
        config: ModelConfig,
        *,
        encoder: nn.Module,
        decoder: nn.Module,
        scheme: PositionScheme,
        src_vocab_size: int,
        tgt_vocab_size: int,
        pad_id: int,
    ) -> None:
        super().__init__()
        self.pad_id = pad_id
        self.d_model = config.d_model
        # No padding_idx: a Marian start token has the id of padding, and needs its embedding.
        self.src_embedding = nn.Embedding(src_vocab_size, config.d_model)
        self.tgt_embedding = self.src_embedding
        if config.tie_embeddings != "all":
            self.tgt_embedding = nn.Embedding(tgt_vocab_size, config.d_model)
        self.encoder = encoder
        self.decoder = decoder
        self.scheme = scheme
        self.output = nn.Linear(config.d_model, tgt_vocab_size, bias=config.output_bias)
        dropout = config.embedding_dropout
        self.dropout = Dropout(config.dropout if dropout is None else dropout)
        self.word_dropout = JointDropout(config.word_dropout, shared=1)
        self._initialise()
        if config.tie_embeddings != "none":
            self.output.weight = self.tgt_embedding.weight

    def _initialise(self) -> None:
        for stack in (self.encoder, self.decoder):
            for parameter in stack.parameters():
                if parameter.dim() > 1:
                    nn.init.xavier_uniform_(parameter)
        for module in (*self.encoder.modules(), *self.decoder.modules()):
            if isinstance(module, nn.Linear) and module.bias is not None:
                nn.init.zeros_(module.bias)
        for embedding in (self.src_embedding, self.tgt_embedding):
            nn.init.normal_(embedding.weight, std=self.d_model**-0.5)
        nn.init.xavier_uniform_(self.output.weight)
        if self.output.bias is not None:
            nn.init.zeros_(self.output.bias)

    def _embed(
        self, ids: Tensor, side: Side, *, start: int = 0, keep: Tensor | None = None
    ) -> tuple[Tensor, Tensor]:
        """ids [B,T], the first column at position `start` -> embeddings [B,T,D], positions [T].

        keep [B,T] bool: where False, the token's embedding is 0 and its position stays.
        """
        end = start + ids.shape[1]
        bound = self.scheme.bounds.get(side)
        if bound is not None and end > bound.length:
            raise UserError(
                f"a {side} of {end} tokens is too long: model.position.{bound.field} allows for "
                f"{bound.length}; shorten the input, or train with a larger one"
            )
        positions = self.scheme.positions(side, start, end, ids.device)
        embedding = self.src_embedding if side == "source" else self.tgt_embedding
        x = self.word_dropout(embedding(ids) * math.sqrt(self.d_model))
        if keep is not None:
            x = x * keep[:, :, None].to(x.dtype)
        return self.dropout(self.scheme.input(side)(x, positions)), positions

    def encode(
        self, src: Tensor, *, tap: AttentionTap | None = None, keep: Tensor | None = None
    ) -> Memory:
        """src [B,S] -> Memory. keep [B,S]: see `forward`."""
        padding = key_padding_mask(src, self.pad_id)
        x, positions = self._embed(src, "source", keep=keep)
        # A tap bypasses torch.compile, which would compile more graphs for it.
        encoder = self.encoder if tap is None else self.encoder.forward
        states = encoder(x, scheme=self.scheme, positions=positions, padding=padding, tap=tap)
        return Memory(states, padding, positions)

    def decode(
        self,
        tgt_in: Tensor,
        memory: Memory,
        *,
        tap: AttentionTap | None = None,
        keep: Tensor | None = None,
    ) -> Tensor:
        """tgt_in [B,T] -> hidden states [B,T,D] that see their own and earlier tokens.

        keep [B,T]: see `forward`.
        """
        y, positions = self._embed(tgt_in, "target", keep=keep)
        decoder = self.decoder if tap is None else self.decoder.forward
        return decoder(y, memory, scheme=self.scheme, positions=positions, tap=tap)

    def project(self, hidden: Tensor) -> Tensor:
        """hidden [...,D] -> logits [...,V]."""
        return linear(hidden, self.output.weight, self.output.bias, at_once=True)

    def output_weight(self) -> Tensor:
        """[V,D'], which turns the hidden states of `forward` with project=False into logits.

        Without an output bias D' = D. With one, D' = D + 8: the bias is a column that meets ones in
        the hidden states, so that a loss needs one product alone.
        """
        weight, bias = self.output.weight, self.output.bias
        if bias is None:
            return weight
        return torch.cat((weight, F.pad(bias[:, None], (0, _BIAS_COLUMNS - 1))), dim=1)

    def forward(
        self,
        src: Tensor,
        tgt_in: Tensor,
        *,
        select: Tensor | None = None,
        project: bool = True,
        tap: AttentionTap | None = None,
        keep: tuple[Tensor, Tensor] | None = None,
    ) -> Tensor:
        """Logits [B,T,V] of the next target tokens.

        Args:
            src: [B,S].
            tgt_in: [B,T].
            select: [N] indices of the wanted target positions among all B*T, row by row: the logits
                are then [N,V]; None: all.
            project: False returns the hidden states [...,D'] for `output_weight`: the training loss
                makes its logits some rows at a time.
            tap: records the attention weights.
            keep: bool, of the shapes of src and tgt_in: where False, a token has its position but
                no embedding.

        Raises UserError for a sequence longer than the scheme allows.
        """
        keep_src, keep_tgt = (None, None) if keep is None else keep
        memory = self.encode(src, tap=tap, keep=keep_src)
        hidden = self.decode(tgt_in, memory, tap=tap, keep=keep_tgt)
        if select is not None:
            hidden = hidden.flatten(0, 1).index_select(0, select)
        if project:
            return self.project(hidden)
        if self.output.bias is None:
            return hidden
        one = hidden.new_ones(*hidden.shape[:-1], 1)
        return torch.cat((hidden, F.pad(one, (0, _BIAS_COLUMNS - 1))), dim=-1)

    def init_state(self, memory: Memory, *, beam_size: int, max_len: int) -> Any:
        """An empty state of beam_size hypotheses a sentence, at most max_len tokens long."""
        return cast(Any, self.decoder).init_state(
            memory, scheme=self.scheme, beam_size=beam_size, max_len=max_len
        )

    def step(self, tokens: Tensor, state: Any) -> Tensor:
        """tokens [B,K], or the next T [B,K,T] -> hidden states [...,D]; the state grows as much."""
        rows = tokens.reshape(tokens.shape[0] * tokens.shape[1], -1)
        y, positions = self._embed(rows, "target", start=state.length)
        hidden = cast(Any, self.decoder).step(y, state, scheme=self.scheme, positions=positions)
        return hidden.view(*tokens.shape, -1)

    def decode_step(self, tokens: Tensor, state: Any) -> Tensor:
        """The next token of every hypothesis: as `step`, but logits [B,K,V], or [B,K,T,V]."""
        return self.project(self.step(tokens, state))
