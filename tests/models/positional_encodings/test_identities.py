"""Which scheme becomes which: whole models with the same weights, equal to 1e-12 in float64."""

import itertools
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from references import catches, close, normal, theta_of
from tiny_models import D_MODEL, N_HEADS, POSITIONS, configured, sources, targets, tiny_model

from configs.positions import Interleaved, Pope, Rope
from models.positional_encodings.rope import rotate
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


@pytest.mark.parametrize("share", [0.75, 1.0])
def test_learned_frequencies_that_are_those_of_the_paper_are_rope(share: float) -> None:
    learned, rope = (
        tiny_model(Rope(learn_frequencies=learn, share=share)) for learn in (True, False)
    )
    catches(same, learned, rope)
    with torch.no_grad():
        for log_theta in learned.scheme.parameters():
            log_theta.copy_(theta_of(D_MODEL // N_HEADS).log())
    same(learned, rope)


def test_pope_without_phases_is_rope_of_magnitudes_on_one_axis_of_each_plane() -> None:
    q, k, at = normal(1, N_HEADS, 5, 8), normal(1, N_HEADS, 5, 8, seed=1), torch.arange(5)
    pope = configured(Pope()).double()
    polar_q, polar_k = (pope.rotate(x, at, role) for x, role in ((q, "query"), (k, "key")))
    points = (F.pad(F.softplus(x)[..., None], (0, 1)).flatten(-2) for x in (q, k))
    rope_q, rope_k = (rotate(x, at, theta_of(16)) for x in points)
    close(polar_q @ polar_k.mT, rope_q @ rope_k.mT, 1e-12)


@pytest.mark.parametrize(
    "name", ["none", "rope", "alibi", "t5", "kerple_log", "shaw", "xpos", "fox"]
)
@pytest.mark.parametrize("every", [2, 3])
def test_a_scheme_interleaved_with_itself_is_the_scheme(name: str, every: int) -> None:
    scheme: Any = POSITIONS[name]
    layers = {"n_encoder_layers": 3, "n_decoder_layers": 3}
    plain = tiny_model(scheme, **layers)
    both = tiny_model(Interleaved(others=scheme, nth=scheme, every=every), **layers)
    weights = plain.state_dict()
    both.load_state_dict({k: v for k, v in weights.items() if "scheme" not in k}, strict=False)
    for kind, layer in itertools.product(("encoder", "decoder"), range(3)):
        own = [each.scheme.attention(kind, layer) for each in (both, plain)]
        own[0].load_state_dict(own[1].state_dict())
    same(both, plain)


def test_rotations_of_a_line_by_any_matrix_are_rope_with_frequencies_of_its_own() -> None:
    """LieRE and ComRoPE: exp(tA) of a skew-symmetric A turns planes, which are its eigenvectors."""
    q, k, noise = normal(1, 1, 5, 8), normal(1, 1, 5, 8, seed=1), normal(8, 8, seed=2)
    skew, at = noise - noise.T, torch.arange(5)
    frequencies, vectors = torch.linalg.eigh(1j * skew)
    theta, planes = frequencies[4:], 2**0.5 * vectors[:, 4:]
    basis = torch.stack((planes.real, planes.imag), dim=-1).flatten(1)  # goes into W_q and W_k
    lie_q, lie_k = (
        (torch.matrix_exp(at[:, None, None] * skew) @ x[..., None])[..., 0] for x in (q, k)
    )
    rope_q, rope_k = (rotate(x @ basis, at, theta) for x in (q, k))
    close(rope_q @ rope_k.mT, lie_q @ lie_k.mT, 1e-12)
