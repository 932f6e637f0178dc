"""What may be changed in the configuration of a trained model. Imports no torch."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

from configs.load import load_config
from configs.schema import Config, Search
from configs.serialize import apply_overrides, diff, kinds, parse_override
from utils.errors import UserError

SEARCHES = tuple(kinds(Search))  # of decode.search
EVALUATION = ("data", "evaluate", "decode")  # the sections that scoring uses

# Fields of the model and tokenizer sections that shape neither the weights nor what is answered.
TRAINING_ONLY = {
    "model.dropout",
    "model.embedding_dropout",
    "model.word_dropout",
    "model.attention_dropout",
    "model.activation_dropout",
    "model.stochastic_depth",
    "model.init",
    "model.position.form",
    "tokenizer.sampling",
}
SHAPING = ("model.", "tokenizer", "data.src_lang", "data.tgt_lang")


def config_change(
    file: str | None,
    search: str | None,
    overrides: Sequence[str],
    *,
    sections: Sequence[str] = ("decode",),
    one_best: bool = False,
) -> Callable[[Config], Config]:
    """What a script does to a checkpoint's configuration, for `load_run`.

    Args:
        file: a config of the same model, from which the `sections` are taken.
        search: the kind of decode.search; other words (greedy, both) leave it.
        overrides: SECTION.FIELD=VALUE texts, which come last.
        sections: those that may differ from training; `overrides` may set no other.
        one_best: ask for one translation, unless minimum Bayes risk or `overrides` need more.

    Raises UserError at once for a file that is missing and an override of another section; the
    change raises it where the file, or a language, is not that of the model.
    """
    keys = [parse_override(text)[0] for text in overrides]
    for key, text in zip(keys, overrides):
        if key.partition(".")[0] not in sections:
            allowed = ", ".join(f"{section}.*" for section in sections)
            raise UserError(
                f"--set {text}: {key} was fixed by training; only {allowed} can be set here"
            )
    given = None if file is None else load_config(file)

    def change(trained: Config) -> Config:
        config = trained
        if given is not None:
            require_same_model(trained, given, where=f"--config {file}")
            config = replace(trained, **{name: getattr(given, name) for name in sections})
        if search in SEARCHES and search != config.decode.search.kind:
            config = apply_overrides(config, [f"decode.search={search}"])
        config = _with_overrides(config, overrides, keys)
        if one_best and config.decode.mbr is None and "decode.n_best" not in keys:
            config = replace(config, decode=replace(config.decode, n_best=1))
        before, after = trained.data, config.data
        if (after.src_lang, after.tgt_lang) != (before.src_lang, before.tgt_lang):
            raise UserError(
                f"data.src_lang = {after.src_lang!r}, data.tgt_lang = {after.tgt_lang!r}: "
                f"the model translates {before.src_lang} to {before.tgt_lang}"
            )
        return config

    return change


def _with_overrides(config: Config, overrides: Sequence[str], keys: Sequence[str]) -> Config:
    """A smaller beam takes n_best down with it, unless n_best is set too."""
    if "decode.n_best" in keys:
        return apply_overrides(config, overrides)
    changed = apply_overrides(config, ["decode.n_best=1", *overrides])
    n_best = min(config.decode.n_best, changed.decode.beam_size)
    return replace(changed, decode=replace(changed.decode, n_best=n_best))


def require_same_model(trained: Config, given: Config, *, where: str) -> None:
    """Raises UserError where `given`, read from `where`, describes another model than `trained`.

    Model, tokenizer and languages count; training, evaluation and the corpus do not.
    """
    differing = diff(trained, given)
    # Where the kind of a section differs, its fields say nothing more.
    inside = tuple(f"{key}." for key, _, _ in differing)
    different = [
        f"{key} is {a!r} in the checkpoint and {b!r} in the file"
        for key, a, b in differing
        if key.startswith(SHAPING) and key not in TRAINING_ONLY and not key.startswith(inside)
    ]
    if different:
        more = f" (and {len(different) - 3} more)" if len(different) > 3 else ""
        raise UserError(
            f"{where} does not fit the checkpoint: {'; '.join(different[:3])}{more}. "
            "Leave --config out: the checkpoint brings its own"
        )
