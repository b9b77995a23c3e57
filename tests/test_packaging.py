"""What is published: the public names, the metadata, the archives, and the files that a forge reads."""

import ast
import os
import re
import shutil
import subprocess
import sys
import sysconfig
import tarfile
import tomllib
import zipfile
from importlib import import_module
from pathlib import Path

import pytest
import yaml

import l2d
from l2d import kernels

ROOT = Path(__file__).parents[1]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
COMPILED = "l2d/kernels/compiled."  # made where there is a C compiler
TINY = ("dataset.num_train=256", "dataset.num_test=200", "trainer.epochs=2")


def seen_by_type_checkers(package: str) -> dict[str, str]:
    """name -> module, of the imports below `if TYPE_CHECKING` in a package's own file."""
    tree = ast.parse(Path(import_module(package).__file__).read_text())
    (branch,) = (node for node in tree.body if isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING")
    imports = [node for node in branch.body if isinstance(node, ast.ImportFrom)]
    return {name.name: str(node.module) for node in imports for name in node.names}


@pytest.mark.parametrize("package", ["l2d", "l2d.data", "l2d.evaluation", "l2d.inference"])
def test_a_lazy_name_is_what_type_checkers_see(package):
    module, seen = import_module(package), seen_by_type_checkers(package)
    for name, where in seen.items():
        assert getattr(module, name) is getattr(import_module(where), name)
    assert seen.keys() <= set(module.__all__) and all(hasattr(module, name) for name in module.__all__)
    with pytest.raises(AttributeError, match=f"{package}.*Sytem"):
        module.Sytem  # noqa: B018


def test_all_that_l2d_exports_is_listed_documented_and_imported_only_when_it_is_used():
    assert set(l2d.__all__) == {"__version__", *seen_by_type_checkers("l2d")}
    assert set(l2d.__all__) <= set(dir(l2d))
    code = (ROOT / "docs" / "stability.md").read_text().partition("```python")[2].partition("```")[0]
    assert {"__version__", *re.findall(r"l2d\.(\w+)", code)} == set(l2d.__all__)
    code = "import sys, l2d; assert not {'torch', 'hydra', 'numpy'} & set(sys.modules); l2d.System; print('torch' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "True\n"


def named(requirement: str) -> str:
    """hydra-core>=1.3.2,<1.4 -> hydra-core."""
    return re.split(r"[\[<>=~!; ]", requirement)[0].lower().replace("_", "-")


def test_the_version_is_the_same_everywhere():
    assert yaml.safe_load((ROOT / "CITATION.cff").read_text())["version"] == l2d.__version__
    newest = re.search(r"^## (\S+)", (ROOT / "CHANGELOG.md").read_text(), re.MULTILINE)
    assert newest and newest[1] == l2d.__version__


def test_the_metadata_agree_with_what_is_said_elsewhere():
    authors = yaml.safe_load((ROOT / "CITATION.cff").read_text())["authors"]
    assert [author["name"] for author in PROJECT["authors"]] == [author["name"] for author in authors]
    extras = PROJECT["optional-dependencies"]
    (others,) = (re.findall(r"[\w-]+", entry)[1:] for entry in extras["dev"] if entry.startswith("l2d["))
    assert {"dev", *others} == extras.keys(), "the tests need every extra"
    wanted = [*PROJECT["dependencies"], *(entry for entries in extras.values() for entry in entries)]
    pinned = {named(line) for line in (ROOT / "constraints.txt").read_text().splitlines()}
    assert set(map(named, wanted)) - pinned == {"l2d", "setuptools"}, "run scripts/constraints"


def test_what_the_forge_and_pre_commit_run_is_there():
    forge = sorted((ROOT / ".github").rglob("*.yml"))
    assert {path.name for path in forge} == {"bug.yml", "ci.yml", "config.yml", "proposal.yml"}
    parsed = {path.name: yaml.safe_load(path.read_text()) for path in forge}
    steps = [step for job in parsed["ci.yml"]["jobs"].values() for step in job["steps"]]
    hooks = [
        hook
        for repo in yaml.safe_load((ROOT / ".pre-commit-config.yaml").read_text())["repos"]
        for hook in repo["hooks"]
    ]
    commands = [step["run"] for step in steps if "run" in step] + [hook["entry"] for hook in hooks]
    assert len(commands) == 6
    for program, *words in map(str.split, commands):
        if program == "python":
            assert words[0] == "-m" and import_module(words[1])
        elif program.startswith(".venv/bin/"):
            assert shutil.which(Path(program).name, path=sysconfig.get_path("scripts"))
        else:
            assert os.access(ROOT / program, os.X_OK)
    for name in ("bug.yml", "proposal.yml"):
        fields = [field for field in parsed[name]["body"] if field["type"] != "markdown"]
        assert {"name", "description", "body"} == parsed[name].keys()
        assert all(field["id"] and field["attributes"]["label"] for field in fields)


def test_outputs_is_part_of_a_checkout_and_its_runs_are_not(tmp_path):
    if not shutil.which("git"):
        pytest.skip("needs git")
    shutil.copy(ROOT / ".gitignore", tmp_path)
    subprocess.run(["git", "init", "-q", tmp_path], check=True)
    listed = "outputs/README.md", "outputs/synthetic/RUN/result.json", "outputs/.sweeps/1.json", "l2d/report/page.py"
    ask = ["git", "-C", tmp_path, "check-ignore", *listed]
    ignored = subprocess.run(ask, capture_output=True, text=True).stdout.split()
    assert ignored == [*listed[1:3]] and (ROOT / listed[0]).is_file()


def build(folder: Path) -> tuple[Path, Path]:
    """The sdist of this checkout, and the wheel that is built from it."""
    source = folder / "a checkout"
    skip = shutil.ignore_patterns("__pycache__", "*.egg-info", "compiled.*")
    for name in ("l2d", "conf", "hydra_plugins", "examples", "scripts", "tests"):
        shutil.copytree(ROOT / name, source / name, ignore=skip)
    top = "pyproject.toml setup.py MANIFEST.in README.md LICENSE CHANGELOG.md constraints.txt"
    for name in top.split():
        shutil.copy(ROOT / name, source)
    code = f"from setuptools import build_meta; build_meta.build_sdist({str(folder)!r})"
    subprocess.run([sys.executable, "-c", code], cwd=source, check=True, capture_output=True)
    (sdist,) = folder.glob("*.tar.gz")
    command = [sys.executable, "-m", "pip", "wheel", "-q", "--no-deps", "--no-build-isolation", "-w", folder, sdist]
    subprocess.run(command, check=True, capture_output=True)
    return sdist, *folder.glob("*.whl")


def files(folder: str) -> set[str]:
    paths = (path.relative_to(ROOT).as_posix() for path in (ROOT / folder).rglob("*") if path.is_file())
    return {path for path in paths if "__pycache__" not in path and not path.startswith(COMPILED)}


@pytest.mark.slow
def test_the_sdist_makes_a_wheel_that_has_everything_and_works_from_any_folder(tmp_path):
    sdist, wheel = build(tmp_path)
    with tarfile.open(sdist) as archive:
        held = {name.partition("/")[2] for name in archive.getnames()}
    more = {"LICENSE", "CHANGELOG.md", "constraints.txt", "scripts/test", "tests/conftest.py"}
    assert files("l2d") | files("hydra_plugins") | files("conf") | files("examples") | more <= held
    with zipfile.ZipFile(wheel) as archive:
        held = {name for name in archive.namelist() if ".dist-info/" not in name}
        assert kernels._library is None or [name for name in held if name.startswith(COMPILED)]
        held = {name for name in held if not name.startswith(COMPILED)}
        (metadata,) = (archive.read(name).decode() for name in archive.namelist() if name.endswith("/METADATA"))
    assert held == files("l2d") | files("hydra_plugins") | {f"l2d/{path}" for path in files("conf")}
    assert "l2d/py.typed" in held
    for line in (f"Version: {l2d.__version__}", "License-Expression: MIT", "Requires-Python: >=3.11"):
        assert f"\n{line}\n" in metadata

    installed, elsewhere = tmp_path / "installed", tmp_path / "some where"
    install = [sys.executable, "-m", "pip", "install", "-q", "--no-deps", "--no-index", "--target", installed, wheel]
    subprocess.run(install, check=True, capture_output=True)
    elsewhere.mkdir()
    environment = {**os.environ, "PYTHONPATH": str(installed)}
    where = [sys.executable, "-c", "import l2d.config; print(l2d.config.config_dir())"]
    found = subprocess.run(where, cwd=elsewhere, env=environment, capture_output=True, text=True, check=True).stdout
    assert Path(found.strip()) == installed / "l2d" / "conf"

    def command(name, *words):
        script = [sys.executable, str(installed / "bin" / name), *words]
        return subprocess.run(script, cwd=elsewhere, env=environment, capture_output=True, text=True)

    done = command("l2d", "train", "-m", *TINY, "seed=0,1", "hydra/launcher=joblib", "hydra.launcher.n_jobs=1")
    assert done.returncode == 0, done.stderr
    assert len(list(elsewhere.glob("outputs/synthetic/*/result.json"))) == 2
    again = command("l2d-train", *TINY)
    assert again.returncode == 0 and again.stderr == "" and "finished before" in again.stdout
    old, new = command("l2d-status"), command("l2d", "status")
    assert old.stdout == new.stdout and new.stderr == "" and old.stderr.count("\n") == 1
    assert "l2d-status" in old.stderr and "`l2d status`" in old.stderr
