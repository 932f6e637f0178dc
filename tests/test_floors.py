"""A file imports only from the floors below it, without circles; starting a script is cheap."""

import ast
import sys
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

import pytest
from conftest import ROOT, run_script

SCRIPTS = ("train", "inference", "test", "visualize", "serve", "export", "average", "tune")
SCRIPTS += ("back_translate", "datastore", "rerank")
# From the ground up. Names on one floor do not import each other; inside a name there is no circle.
FLOORS = [
    ("utils",),
    ("configs",),
    ("tokenizer", "models.masks", "models.products"),
    ("models.dropout", "models.linear", "models.positional_encodings", "data"),
    ("models.attention", "models.schemes"),
    ("models.decode_state", "models.loss"),
    ("models.transformer_backend",),
    ("models.transformer", "models.transformer_ori", "models.initialisation"),
    ("models.build", "models.decoding"),
    ("checkpoints",),
    ("translation",),
    ("pictures", "fr2en"),
    ("training", "explorer"),
    ("experiments", "serving"),
    ("benchmarks", *SCRIPTS),
]
FLOOR_OF = {unit: floor for floor, units in enumerate(FLOORS) for unit in units}
HOUSES = sorted({unit.split(".")[0] for unit in FLOOR_OF} - set(SCRIPTS))


def unit_of(module: str) -> str | None:
    parts = module.split(".")
    prefixes = (".".join(parts[:n]) for n in range(len(parts), 0, -1))
    return next((prefix for prefix in prefixes if prefix in FLOOR_OF), None)


def imported_modules(source: str, module: str) -> set[str]:
    """Dotted names that a file imports, wherever the statement stands; `from a import b` is a.b."""
    names: set[str] = set()
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            names.update(alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{module}: relative import"
            names.update(f"{node.module}.{alias.name}" for alias in node.names)
    return names


def broken_floors(module: str, source: str) -> list[str]:
    unit, broken = unit_of(module), []
    for name in imported_modules(source, module):
        if name.split(".")[0] not in {*HOUSES, *SCRIPTS}:
            continue
        other = unit_of(name)
        known = unit is not None and other is not None
        downward = known and (other == unit or FLOOR_OF[other] < FLOOR_OF[unit])
        # A model knows ids, not where they come from.
        if not downward or (module.startswith("models.") and other == "data"):
            broken.append(f"{module} imports {name}")
    return broken


def project_files() -> dict[str, Path]:
    paths = [path for house in HOUSES for path in sorted((ROOT / house).rglob("*.py"))]
    paths += [ROOT / f"{script}.py" for script in SCRIPTS]
    names = [".".join(path.relative_to(ROOT).with_suffix("").parts) for path in paths]
    return {name.removesuffix(".__init__"): path for name, path in zip(names, paths)}


def circle(sources: dict[str, str]) -> list[str]:
    """The modules of one import circle, or nothing."""
    graph = {}
    for module, source in sources.items():
        names = imported_modules(source, module)
        names = {name if name in sources else name.rpartition(".")[0] for name in names}
        graph[module] = (names & sources.keys()) - {module}
    try:
        TopologicalSorter(graph).prepare()
    except CycleError as error:
        return error.args[1]
    return []


def test_every_file_imports_from_lower_floors_alone() -> None:
    files = project_files()
    assert len(files) > 40
    assert not [b for name, path in files.items() for b in broken_floors(name, path.read_text())]


def test_no_files_import_each_other_in_a_circle() -> None:
    assert circle({m: path.read_text("utf-8") for m, path in project_files().items()}) == []
    back = {"utils.a": "from utils import b", "utils.b": "def f():\n    from utils.a import g"}
    assert set(circle(back)) == {"utils.a", "utils.b"}


def test_every_module_has_a_floor() -> None:
    folders = {path.parent.name for path in ROOT.glob("*/__init__.py")} - {"tests"}
    assert folders == set(HOUSES)
    assert [m for m in project_files() if unit_of(m) is None and m != "models"] == []


@pytest.mark.parametrize(
    ("module", "line"),
    [
        ("utils.files", "from configs.schema import Config"),
        ("configs.schema", "import tokenizer.build"),
        ("models.masks", "from models.attention import kernels"),
        ("models.transformer", "from data.batching import Batch"),
        ("models.transformer_ori", "from models.transformer import TranslationTransformer"),
        ("models.decoding.beam", "def f():\n    from translation.translator import Translator"),
        ("models", "from models.build import build_model"),
    ],
)
def test_an_upward_or_sideward_import_is_seen(module: str, line: str) -> None:
    assert broken_floors(module, line)


def test_the_configuration_needs_the_standard_library_alone() -> None:
    for path in (ROOT / "configs").glob("*.py"):
        names = imported_modules(path.read_text("utf-8"), path.stem)
        assert {n.split(".")[0] for n in names} <= {*sys.stdlib_module_names, "configs", "utils"}


def test_translating_loads_no_heavy_package() -> None:
    heavy = "datasets transformers matplotlib nltk sacrebleu tensorboard pyarrow sklearn"
    code = "import sys, translation.translator, translation.metrics\n"
    code += f"print([name for name in {[*heavy.split(), 'torch._dynamo']} if name in sys.modules])"
    assert run_script("-c", code).stdout == "[]\n"
