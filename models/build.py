"""From a configuration and a vocabulary to a model."""

from torch import nn

from configs.schema import ModelConfig
from models.initialisation import initialise_deepnorm, scale_by_depth
from models.schemes import build_scheme as build_scheme
from models.transformer import TranslationTransformer
from models.transformer_backend import Decoder, Encoder, deepnorm_constants
from models.transformer_ori import TorchDecoder, TorchEncoder
from tokenizer.base import BaseTokenizer
from utils.errors import ConfigError


def build_model(config: ModelConfig, tokenizer: BaseTokenizer) -> TranslationTransformer:
    """A freshly initialised model for the tokenizer's vocabularies.

    Raises ConfigError where tied embeddings meet separate vocabularies.
    """
    if config.tie_embeddings == "all" and not tokenizer.shared_vocab:
        raise ConfigError(
            "model.tie_embeddings = 'all': the tokenizer has separate vocabularies; "
            "allowed: 'none', 'target'"
        )
    scratch = config.backend == "scratch"
    encoder: nn.Module = Encoder(config) if scratch else TorchEncoder(config)
    decoder: nn.Module = Decoder(config) if scratch else TorchDecoder(config)
    model = TranslationTransformer(
        config,
        encoder=encoder,
        decoder=decoder,
        scheme=build_scheme(config),
        src_vocab_size=tokenizer.src_vocab_size,
        tgt_vocab_size=tokenizer.tgt_vocab_size,
        pad_id=tokenizer.pad_id,
    )
    constants = deepnorm_constants(config.n_encoder_layers, config.n_decoder_layers)
    for stack, (_, beta) in zip((encoder, decoder), constants):
        if config.norm == "deepnorm":
            initialise_deepnorm(stack, beta=beta)
        if config.init == "depth_scaled":
            scale_by_depth(stack)
    return model
