"""The names that `--position` knows, and how one of them gets into a config."""

from typing import Any

from configs.positions import (
    T5,
    Alibi,
    Combined,
    Cope,
    Dape,
    Deberta,
    DynamicNtkScaling,
    Fire,
    Fox,
    Interleaved,
    Kerple,
    Learnable,
    LinearScaling,
    NoPosition,
    NtkScaling,
    Pope,
    Position,
    Randomized,
    Repo,
    Rope,
    Sandwich,
    SelectiveRope,
    Shape,
    Shaw,
    Sinusoidal,
    Ssmax,
    TransformerXl,
    Tupe,
    XPos,
    YarnScaling,
)
from configs.section import kinds, to_dict
from utils.errors import ConfigError, closest_first

# Names for `--position` and the experiments. A name that is also a kind stands for its defaults.
POSITIONS: dict[str, Position] = {
    "none": NoPosition(),
    "sinusoidal": Sinusoidal(),
    "sinusoidal_half": Sinusoidal(layout="half"),
    "sinusoidal_t2t": Sinusoidal(layout="t2t"),
    "learnable": Learnable(),
    "shape": Shape(),
    "rope": Rope(),
    "rope_half": Rope(layout="half"),
    "p_rope": Rope(share=0.75),
    "rope_clipped": Rope(clipped=0.3125),
    "rope_learned": Rope(learn_frequencies=True),
    "rope_linear": Rope(scaling=LinearScaling()),
    "rope_ntk": Rope(scaling=NtkScaling()),
    "rope_dynamic_ntk": Rope(scaling=DynamicNtkScaling()),
    "rope_yarn": Rope(scaling=YarnScaling()),
    "selective_rope": SelectiveRope(),
    "repo": Repo(),
    "pope": Pope(),
    "xpos": XPos(),
    "alibi": Alibi(),
    "alibi_asymmetric": Alibi(asymmetry=0.5),
    "t5": T5(),
    "kerple_log": Kerple(),
    "kerple_power": Kerple(form="power"),
    "fire": Fire(),
    "sandwich": Sandwich(),
    "shaw": Shaw(),
    "transformer_xl": TransformerXl(),
    "xlnet": TransformerXl(reading="xlnet"),
    "deberta": Deberta(),
    "deberta_log": Deberta(max_distance=128, log_buckets=32),
    "tupe": Tupe(),
    "tupe_r": Tupe(relative=T5()),
    "dape": Dape(),
    "cope": Cope(),
    "fox": Fox(),
    "interleaved": Interleaved(),
    "ssmax": Ssmax(),
    "randomized_rope": Randomized(),
    "sinusoidal_t5": Combined(),
}


def choose_position(config: dict[str, Any], name: str, max_len: int, decode_max_len: int) -> None:
    """Put the scheme of `--position NAME`, a kind or one of POSITIONS, into the dict of a Config.

    A kind keeps the present scheme where that is of this kind already. A scaled rotation is one
    trained on `max_len` tokens, a table of positions is made long enough for both lengths, and the
    name of the config ends in that of the scheme. Raises ConfigError listing the names.
    """
    present = config["model"]["position"]["kind"]
    if name == present:
        return
    schemes: dict[str, Any] = POSITIONS | {k: cls() for k, cls in kinds(Position).items()}
    if name not in schemes:
        allowed = ", ".join(closest_first(name, schemes))
        raise ConfigError(f"model.position = {name!r}: allowed: {allowed}")
    chosen = to_dict(schemes[name])
    if chosen.get("max_positions") is not None:
        chosen["max_positions"] = max(chosen["max_positions"], max_len, decode_max_len)
    if "trained_length" in chosen.get("scaling", {}):
        chosen["scaling"]["trained_length"] = max_len
    config["model"]["position"] = chosen
    # The name of the config may end in that of the present scheme, or of one of its kind.
    endings = [f"_{other}" for other, scheme in schemes.items() if scheme.kind == present]
    ending = next(filter(config["name"].endswith, endings), "")
    config["name"] = f"{config['name'].removesuffix(ending)}_{name}"
