"""The names that `--position` takes, and how a named scheme enters a config."""

import re
import zlib
from typing import Any

from configs import positions
from configs.section import kinds, require_free, to_dict, type_hints
from utils.errors import ConfigError, closest_first

# Names for `--position` and the experiments. A name that is also a kind stands for its defaults.
POSITIONS: dict[str, positions.Position] = {
    "none": positions.NoPosition(),
    "sinusoidal": positions.Sinusoidal(),
    "sinusoidal_half": positions.Sinusoidal(layout="half"),
    "sinusoidal_t2t": positions.Sinusoidal(layout="t2t"),
    "learnable": positions.Learnable(),
    "shape": positions.Shape(),
    "rope": positions.Rope(),
    "rope_half": positions.Rope(layout="half"),
    "p_rope": positions.Rope(share=0.75),
    "rope_clipped": positions.Rope(clipped=0.3125),
    "rope_learned": positions.Rope(learn_frequencies=True),
    "rope_linear": positions.Rope(scaling=positions.LinearScaling()),
    "rope_ntk": positions.Rope(scaling=positions.NtkScaling()),
    "rope_dynamic_ntk": positions.Rope(scaling=positions.DynamicNtkScaling()),
    "rope_yarn": positions.Rope(scaling=positions.YarnScaling()),
    "selective_rope": positions.SelectiveRope(),
    "repo": positions.Repo(),
    "pope": positions.Pope(),
    "fope": positions.Fope(),
    "xpos": positions.XPos(),
    "alibi": positions.Alibi(),
    "alibi_asymmetric": positions.Alibi(asymmetry=0.5),
    "t5": positions.T5(),
    "kerple_log": positions.Kerple(),
    "kerple_power": positions.Kerple(form="power"),
    "fire": positions.Fire(),
    "sandwich": positions.Sandwich(),
    "shaw": positions.Shaw(),
    "transformer_xl": positions.TransformerXl(),
    "xlnet": positions.TransformerXl(reading="xlnet"),
    "deberta": positions.Deberta(),
    "deberta_log": positions.Deberta(max_distance=128, log_buckets=32),
    "tupe": positions.Tupe(),
    "tupe_r": positions.Tupe(relative=positions.T5()),
    "dape": positions.Dape(),
    "cope": positions.Cope(),
    "fox": positions.Fox(),
    "interleaved": positions.Interleaved(),
    "ssmax": positions.Ssmax(),
    "randomized_rope": positions.Randomized(),
    "sinusoidal_t5": positions.Combined(),
}
KINDS: dict[str, positions.Position] = {k: cls() for k, cls in kinds(positions.Position).items()}
for _kind, _scheme in KINDS.items():
    # A scheme without a name, such as one of your own, is compared under its kind.
    if _scheme not in POSITIONS.values():
        require_free(type(_scheme), type(POSITIONS.setdefault(_kind, _scheme)))
NAMES = ", ".join(POSITIONS | KINDS)
SCALED = {
    kind
    for kind, cls in (kinds(positions.Scaling) | kinds(positions.Position)).items()
    if "trained_length" in type_hints(cls)
}


def is_position(text: str) -> bool:
    """Whether `text` begins as `--position` does, with a name of POSITIONS or a kind."""
    return text.partition(":")[0] in POSITIONS | KINDS


def position_in_names(text: str) -> str:
    """A text of `--position` as a part of a file's name: rope:base=500 becomes rope_base_500.

    A long one ends in its checksum: file systems take 255 bytes.
    """
    name = re.sub(r"[^\w.-]+", "_", text).strip("_")
    return name if len(name) <= 120 else f"{name[:110]}_{zlib.crc32(text.encode()):08x}"


def position_name(position: positions.Position) -> str | None:
    """The scheme's name for `--position`, or None; table sizes and trained lengths are ignored."""

    def plain(scheme: positions.Position) -> dict[str, Any]:
        data = {**to_dict(scheme), "max_positions": None}
        fit_scaling(data, 1)
        return data

    wanted = plain(position)
    return next((name for name, scheme in POSITIONS.items() if plain(scheme) == wanted), None)


def fit_scaling(position: dict[str, Any], max_len: int) -> None:
    """Give every scheme in `position` that has a trained length this one, in tokens."""
    if position.get("kind") in SCALED:
        position["trained_length"] = max_len
    for part in position.values():
        if isinstance(part, dict):
            fit_scaling(part, max_len)


def choose_position(config: dict[str, Any], text: str, max_len: int, decode_max_len: int) -> None:
    """Put the scheme of `--position NAME` into the dict of a Config.

    text: a name of POSITIONS, or a kind for its defaults; what follows a colon enters the config's
    name alone. A trained length is `max_len`. A table of positions of its own
    is made long enough for both lengths. Where the scheme changes, the config's name ends in that
    of the new one. Raises ConfigError listing the names.
    """
    schemes, name = POSITIONS | KINDS, text.partition(":")[0]
    if name not in schemes:
        allowed = ", ".join(closest_first(name, schemes))
        raise ConfigError(f"model.position = {name!r}: allowed: {allowed}")
    chosen, present = to_dict(schemes[name]), config["model"]["position"]
    if chosen.get("max_positions") is not None:
        chosen["max_positions"] = max(chosen["max_positions"], max_len, decode_max_len)
    fit_scaling(chosen, max_len)
    if chosen == present and text == name:
        return
    config["model"]["position"] = chosen
    # The config's name may end in that of its present scheme, or of another of the same kind.
    endings = [f"_{key}" for key, scheme in schemes.items() if scheme.kind == present["kind"]]
    ending = max(filter(config["name"].endswith, endings), key=len, default="")
    config["name"] = f"{config['name'].removesuffix(ending)}_{position_in_names(text)}"
