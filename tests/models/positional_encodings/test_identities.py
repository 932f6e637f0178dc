"""Which scheme becomes which: whole models with the same weights, equal to 1e-12 in float64."""

import pytest
from references import catches, close
from tiny_models import sources, targets, tiny_model

from configs.positions import Rope
from models.transformer import TranslationTransformer


def same(model: TranslationTransformer, other: TranslationTransformer) -> None:
    batch = sources(7, 4, 6), targets(3, 8)
    close(model(*batch), other(*batch), 1e-12)


@pytest.mark.parametrize("layout", ["interleaved", "half"])
def test_p_rope_with_all_pairs_is_rope_and_with_none_is_no_position(layout) -> None:
    rope, none = tiny_model(Rope(layout=layout)), tiny_model()
    same(tiny_model(Rope(share=1.0, layout=layout)), rope)
    same(tiny_model(Rope(share=0.0, layout=layout)), none)
    for share in (0.25, 0.75):  # of four pairs
        for whole in (rope, none):
            catches(same, tiny_model(Rope(share=share, layout=layout)), whole)
