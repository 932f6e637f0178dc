"""From a configuration and a vocabulary to a model: the one place that knows which class serves
which config.
"""

from __future__ import annotations

from dataclasses import replace

from torch import nn

from configs.schema import ModelConfig
from models.initialisation import DeepNorm, deepnorm_constants, initialise_deepnorm, scale_by_depth
from models.schemes import build_scheme as build_scheme
from models.transformer import TranslationTransformer
from models.transformer_backend import Decoder, Encoder, LayerShape
from models.transformer_ori import TorchDecoder, TorchEncoder
from tokenizer.base import BaseTokenizer
from utils.errors import ConfigError


def build_model(config: ModelConfig, tokenizer: BaseTokenizer) -> TranslationTransformer:
    """A freshly initialised model for the tokenizer's vocabularies.

    Raises ConfigError where tied embeddings meet separate vocabularies.
    """
    if config.tie_embeddings == "all" and not tokenizer.shared_vocab:
        raise ConfigError(
            "model.tie_embeddings = 'all': the tokenizer has separate vocabularies; allowed: 'none', 'target'"
        )
    shape = LayerShape(
        d_model=config.d_model,
        n_heads=config.n_heads,
        d_ff=config.d_ff,
        dropout=config.dropout,
        attention_dropout=config.attention_dropout,
        activation_dropout=config.activation_dropout,
        activation=config.activation,
        norm=config.norm,
        bias=config.bias,
        stochastic_depth=config.stochastic_depth,
    )
    in_encoder, in_decoder = (DeepNorm(alpha=1.0, beta=1.0),) * 2
    if config.norm == "deepnorm":
        in_encoder, in_decoder = deepnorm_constants(
            config.n_encoder_layers, config.n_decoder_layers
        )
    encoder: nn.Module
    decoder: nn.Module
    if config.backend == "scratch":
        encoder = Encoder(
            replace(shape, residual_scale=in_encoder.alpha), n_layers=config.n_encoder_layers
        )
        decoder = Decoder(
            replace(shape, residual_scale=in_decoder.alpha), n_layers=config.n_decoder_layers
        )
    else:
        encoder = TorchEncoder(shape, n_layers=config.n_encoder_layers)
        decoder = TorchDecoder(shape, n_layers=config.n_decoder_layers)
    model = TranslationTransformer(
        encoder=encoder,
        decoder=decoder,
        scheme=build_scheme(config),
        d_model=config.d_model,
        src_vocab_size=tokenizer.src_vocab_size,
        tgt_vocab_size=tokenizer.tgt_vocab_size,
        pad_id=tokenizer.pad_id,
        dropout=config.dropout if config.embedding_dropout is None else config.embedding_dropout,
        word_dropout=config.word_dropout,
        tie_embeddings=config.tie_embeddings,
    )
    if config.norm == "deepnorm":
        initialise_deepnorm(encoder, beta=in_encoder.beta)
        initialise_deepnorm(decoder, beta=in_decoder.beta)
    if config.init == "depth_scaled":
        scale_by_depth(encoder)
        scale_by_depth(decoder)
    return model
