"""Which checkpoint a user means: of a run, of an export, or of a Marian model."""

import os
from pathlib import Path
from typing import Literal

from checkpoints.content import CONFIG
from checkpoints.marian import PICKLED, fetch_marian, is_of_transformers, marian_run
from checkpoints.run import LEFT, WEIGHTS, Run, hub_name, require_there
from utils.errors import UserError

OF_MARIAN = (
    "a model of Marian's own program: convert it to the format of transformers, whose repository "
    "has convert_marian_to_pytorch.py"
)


def resolve_checkpoint(path: str | Path, *, prefer: Literal["best", "newest"]) -> tuple[Path, Run]:
    """The checkpoint file meant by a user, and its run.

    `path` is a checkpoint, a run folder, or a Marian model (its folder, or its name on the hub:
    OWNER/NAME). "best" is a run's checkpoint with the best validation, or the newest if it has
    none; "newest" is the one to resume from. Raises UserError if there is none, or no such path.
    """
    given, behind = Path(path), Path(os.path.realpath(path))
    if behind.name in (WEIGHTS, PICKLED) and not (given.parent / CONFIG).is_file():
        given = behind  # a link to weights, which need the files beside them
    if given.name in (WEIGHTS, PICKLED) and is_of_transformers(given.parent):
        given = given.parent
    if given.is_file() and given.suffix == ".npz":
        raise UserError(f"{given}: {OF_MARIAN}")
    if given.is_file():
        return given, run_of(given)
    require_there(given)
    if (name := hub_name(given)) is not None:
        run = Run(_of_the_hub(name))
    elif is_of_transformers(given):
        run = Run(marian_run(given, str(given.resolve())))
    else:
        run = run_of(given)
    found = (run.best() if prefer == "best" else None) or run.newest()
    exported = run.path / WEIGHTS
    if found is None and prefer == "best" and exported.is_file():
        return exported, run
    if found is None and any(given.glob("*.npz")):
        raise UserError(f"{given}: {OF_MARIAN}")
    if found is None:
        raise UserError(
            f"{run.path}: no checkpoint in {run.checkpoints}; give the folder of a run that has "
            "saved one (an export for CTranslate2 has none)"
        )
    return found, run


def run_of(path: Path) -> Run:
    """The run of a checkpoint, of a folder of them, or of its own folder; it need not exist.

    For a link it is the run that the link lies in, or else the run of the target.
    """
    a_file = path.is_file() or path.suffix in (".pt", Path(WEIGHTS).suffix)
    runs = []
    for place in (path.absolute() if a_file else path, Path(os.path.realpath(path))):
        folder = place.parent if a_file else place
        folder = folder.parent if folder.name.startswith(LEFT) else folder
        runs.append(Run(folder.parent if folder.name == "checkpoints" else folder))
    return next((run for run in runs if run.tokenizer.is_dir()), runs[0])


def _of_the_hub(name: str) -> Path:
    """The run of a model on the hub, which may be a safetensors export of export.py."""
    try:
        folder = fetch_marian(name)
    except UserError as error:
        raise UserError(f"{name}: no such checkpoint or run folder; {error}") from None
    return marian_run(folder, name) if is_of_transformers(folder) else folder
