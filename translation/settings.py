"""Which settings of a trained model may be changed. Imports no torch."""

from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

from configs.load import load_config
from configs.schema import Config, DataConfig, DecodeConfig, Sampling, Search, shapes_model
from configs.serialize import apply_overrides, diff, kinds, parse_override
from utils.errors import UserError
from utils.languages import may_be_one

SEARCHES = tuple(kinds(Search))  # of decode.search

# Settings that may leave minimum Bayes risk with one translation to choose among.
AMONG = {"decode.mbr", "decode.n_best", "decode.beam_size"}
SHAPING = ("model.", "tokenizer", "data.src_lang", "data.tgt_lang")
TRAINED = (*SHAPING, "data.directions")  # not to be set
# Of a training's batches and validations.
IDLE = {"data.batch_by", "data.batch_size", "data.num_workers"}
IDLE |= {f"evaluate.{name}" for name in ("every_epochs", "every_steps", "choose_by", "also")}
IDLE |= {f"evaluate.{name}" for name in ("bleu_every_epochs", "bleu_sentences")}


def config_change(
    file: str | None,
    search: str | None,
    overrides: Sequence[str],
    *,
    settable: tuple[str, ...] = ("decode.",),
    best_alone: bool = False,
) -> Callable[[Config], Config]:
    """A script's change to a checkpoint's configuration, for `load_run`.

    Raises UserError at once for a missing file, and for an override of what training fixed. The
    change itself raises it if the file is for another model.

    Args:
        file: a config of the same model; the sections that may change are taken from it.
        search: the kind of decode.search; other words (greedy, both) leave it.
        overrides: SECTION.FIELD=VALUE texts, which come last.
        settable: what may change, sections ("data.") or fields.
        best_alone: one translation is used, and no more are searched for or sampled unless minimum
            Bayes risk or `overrides` need them.
    """
    changes = dict(map(parse_override, overrides))
    for text in overrides:
        key, _ = parse_override(text)
        if key.startswith(TRAINED) or key in IDLE or not f"{key}.".startswith(settable):
            if key.partition(".")[0] not in vars(Config()):
                apply_overrides(Config(), [text])  # its error lists the fields
            named = {"data.": "data.* but the languages", "data.max_len": "data.max_len"}
            allowed = ", ".join(named.get(each, f"{each}*") for each in settable)
            idle = key.startswith(("data.", "evaluate.", "decode.")) and not key.startswith(TRAINED)
            why = "is of no use" if idle else "was fixed by training"
            if key in IDLE and key.startswith(settable):
                raise UserError(f"--set {text}: {key} is of training alone: leave it out")
            raise UserError(f"--set {text}: {key} {why}; only {allowed} can be set here")
    if search == "greedy" and changes.get("decode.mbr", "none").lower() not in ("none", "null"):
        raise UserError("decode.mbr: greedy search finds one translation; use another search")
    for key in changes if search == "greedy" else ():
        if key == "decode.beam_size" or key.startswith("decode.search."):
            raise UserError(f"{key}: greedy search has none; use another search")
    no_beam = "decode.beam_size: sampling has none; decode.n_best says how many"
    if search == "sample" and "decode.beam_size" in changes:
        raise UserError(no_beam)
    if search in ("greedy", *SEARCHES) and "decode.search" in changes:
        raise UserError(f"--set decode.search: choose it by --search (now {search})")
    given = None if file is None else load_config(file)

    def choosing(config: Config) -> Config:
        decode = config.decode
        samples = isinstance(decode.search, Sampling)
        if samples and "decode.beam_size" in changes:
            raise UserError(no_beam)
        if search != "greedy" and decode.mbr and decode.n_best == 1 and changes.keys() & AMONG:
            narrow = decode.beam_size == 1 and not samples
            few = "decode.beam_size = 1 and " * narrow + "decode.n_best = 1: raise "
            few += "both" if narrow else "it"
            raise UserError(f"decode.mbr chooses among the n_best, but {few}")
        return config

    def change(trained: Config) -> Config:
        config, texts = trained, list(overrides)
        if "data.max_len" in changes:  # which a budget of tokens would bound
            texts.insert(0, "data.batch_by=sentences")
        if given is not None:
            wanted = given
            if given.train.init_from is not None:  # the parent brought these
                model = trained.model if given.train.init_model else given.model
                wanted = replace(given, tokenizer=trained.tokenizer, model=model)
            _require_same_model(trained, wanted, f"--config {file}")
            names = {each.partition(".")[0] for each in settable}
            config = replace(trained, **{name: getattr(given, name) for name in names})
        if search in SEARCHES and search != config.decode.search.kind:
            texts.insert(0, f"decode.search={search}")
        if "decode.n_best" in changes:
            changed = apply_overrides(config, texts)
            if changed.decode.n_best > 1:
                _require_room(changed.decode, greedy=search == "greedy", best_alone=best_alone)
            return choosing(changed)
        changed = apply_overrides(config, ["decode.n_best=1", *texts])
        if best_alone and changed.decode.mbr is None:
            return choosing(changed)
        n_best = config.decode.n_best
        if not isinstance(changed.decode.search, Sampling):  # a smaller beam lowers n_best
            n_best = min(n_best, changed.decode.beam_size)
        return choosing(replace(changed, decode=replace(changed.decode, n_best=n_best)))

    return change


def search_name(search: str, decode: DecodeConfig) -> str:
    """The name of a search in file names: its kind, the metric if that ranks, its neighbours."""
    name = search if search == "greedy" or decode.mbr is None else f"{search}_mbr_{decode.mbr}"
    return f"{name}_neighbours" if decode.neighbours.datastore else name


def require_same_languages(ours: DataConfig, theirs: DataConfig, other: Path) -> None:
    """Raises UserError where the other run translates between other languages."""
    here, there = (f"{data.src_lang} to {data.tgt_lang}" for data in (ours, theirs))
    pairs = (ours.src_lang, theirs.src_lang), (ours.tgt_lang, theirs.tgt_lang)
    if not all(may_be_one(*pair) for pair in pairs):
        raise UserError(f"{other} translates {there}, not {here}: give runs of the same languages")


def _require_room(decode: DecodeConfig, *, greedy: bool, best_alone: bool) -> None:
    """Raises UserError where several translations are asked for but only one is found or used."""
    asked = f"decode.n_best = {decode.n_best}"
    if greedy:
        raise UserError(f"{asked}: greedy search finds one translation; use another search")
    if best_alone and decode.mbr is None:
        raise UserError(
            f"{asked}: one translation of each line is used; add --mbr to choose among them, or "
            "let inference.py --json write them all"
        )


def _require_same_model(trained: Config, given: Config, where: str) -> None:
    """Model, tokenizer and languages count; training, evaluation and the corpus do not."""
    differing = diff(trained, given)
    # Where the kind of a section differs, its fields add nothing.
    inside = tuple(f"{key}." for key, _, _ in differing)
    different = [
        f"{key} is {a!r} in the checkpoint and {b!r} in the file"
        for key, a, b in differing
        if key.startswith(SHAPING) and shapes_model(key, a, b) and not key.startswith(inside)
    ]
    if different:
        more = f" (and {len(different) - 3} more)" if len(different) > 3 else ""
        raise UserError(
            f"{where} does not fit the checkpoint: {'; '.join(different[:3])}{more}. "
            "Leave --config out: the checkpoint brings its own"
        )
