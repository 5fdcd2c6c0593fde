"""A study on workers whose Python lacks our packages: they come with the runtime environment."""

from __future__ import annotations

import base64
import hashlib
import json
import os
import subprocess
import sys
import sysconfig
import zipfile
from importlib import metadata
from pathlib import Path

import pytest
from ray.runtime_env import RuntimeEnv

from service.settings import SettingsError, load, read_runtime_env

ROOT = Path(__file__).parents[3]
PACKAGES = ("admeta", "tasks", "search", "service")
SCRIPT = """
import json, sys, time
from pathlib import Path
from service.ray import cluster
from service.ray.node_checks import Nodes
from service.database.studies import create_study
from service.settings import load
from service.ray.supervisor import Supervisor, open_store
from service.database.schema import prepare
from search.definition import StudyDefinition

home, file = Path(sys.argv[1]), Path(sys.argv[2])
settings = load({}, home=home, runtime_env_file=file)
home.mkdir()
cluster.join(settings)
nodes = Nodes(prepares=True)
while any("is being checked" in problem for problem in nodes.problems()):
    time.sleep(0.2)
problems = nodes.problems()
found = {"problems": problems}
if not problems:
    prepare(settings.database_url)
    store = open_store(settings.database_url)
    study, _ = create_study(store.engine, StudyDefinition.model_validate({
        "name": "shipped", "task": {"name": "synthetic", "model": "idle", "epochs": 2},
        "optimizers": [{"name": "sgdm"}], "sampler": {"name": "random"}, "pruner": {"name": "none"},
        "budget": {"trials_per_optimizer": 2}, "confirm": {"top_k": 0}, "resources": {"cpus": 1, "gpus": 0},
    }))
    supervisor = Supervisor(settings)
    supervisor.start()
    while not (state := store.get_study(study.id).state).is_terminal:
        time.sleep(0.2)
    record = store.get_study(study.id)
    found |= {"state": state, "reason": record.reason, "runs": [run.state for run in store.runs(study.id)]}
    supervisor.stop()
else:
    cluster.leave(settings)
print(json.dumps(found))
"""


def test_the_file_is_json_or_yaml_and_its_paths_are_relative_to_it(tmp_path: Path) -> None:
    (tmp_path / "ours.whl").touch()
    (tmp_path / "a.yaml").write_text("pip: [optuna]\npy_modules: [ours.whl, 's3://bucket/more.zip']\n")
    (tmp_path / "a.json").write_text(json.dumps({"env_vars": {"TOKEN": "hidden"}}))
    modules = [str(tmp_path / "ours.whl"), "s3://bucket/more.zip"]
    assert load({}, runtime_env_file=tmp_path / "a.yaml").runtime_env == {"pip": ["optuna"], "py_modules": modules}
    settings = load({"ADMETA_RUNTIME_ENV": str(tmp_path / "a.json")})
    assert settings.runtime_env == {"env_vars": {"TOKEN": "hidden"}}
    assert "hidden" not in repr(settings)
    assert load({}).runtime_env is None


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("- pip\n", "holds a list"),
        ("py_modules: ours.whl\n", "must be a list"),
        ("py_modules: [ours.whl]\n", r"there is no .*ours\.whl"),
        ("working_dir: nowhere\n", "there is no .*nowhere"),
        ("{", "is not YAML"),
    ],
)
def test_a_file_that_says_nothing_useful(tmp_path: Path, text: str, words: str) -> None:
    path = tmp_path / "env.yaml"
    path.write_text(text)
    with pytest.raises(SettingsError, match=words):
        read_runtime_env(path)


def test_no_file(tmp_path: Path) -> None:
    with pytest.raises(SettingsError, match=r"cannot be read: .*No such file"):
        load({}, runtime_env_file=tmp_path / "none.yaml")


def test_the_documented_fields_are_rays() -> None:
    RuntimeEnv(pip=["admeta-search[server]==0.1.0"], env_vars={"A": "b"})


@pytest.mark.ray
@pytest.mark.slow
@pytest.mark.parametrize("shipped", [True, False], ids=["shipped", "not shipped"])
def test_workers_without_our_packages(tmp_path: Path, *, shipped: bool) -> None:
    environment = {"py_executable": str(bare_python(tmp_path / "bare"))}
    if shipped:
        environment |= {"py_modules": [wheel(tmp_path).name]}  # type: ignore[dict-item]
    (tmp_path / "env.json").write_text(json.dumps(environment))
    (tmp_path / "script.py").write_text(SCRIPT)
    done = subprocess.run(
        [sys.executable, "script.py", str(tmp_path / "home"), "env.json"],
        cwd=tmp_path,  # Ray lets workers import from where the driver was started
        env={
            **{name: value for name, value in os.environ.items() if name != "PYTHONPATH"},
            # Ray installs a wheel by the first pip on the path; what ours needs is there, and an index may not be.
            "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}",
            "PIP_NO_DEPS": "1",
            "PIP_NO_INDEX": "1",
        },
        capture_output=True,
        text=True,
        check=False,
        timeout=400,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    found = json.loads(done.stdout.splitlines()[-1])
    if shipped:
        assert found == {"problems": [], "state": "COMPLETED", "reason": None, "runs": ["COMPLETE", "COMPLETE"]}
    else:
        assert len(found["problems"]) == 1
        assert "has no admeta-search; install" in found["problems"][0]


def bare_python(folder: Path) -> Path:
    """A Python with all that is installed here but our packages."""
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(folder)], check=True)
    libraries = folder / Path(sysconfig.get_path("purelib")).relative_to(sys.prefix)
    for place in {sysconfig.get_path("purelib"), sysconfig.get_path("platlib")}:
        for entry in Path(place).iterdir():
            if "admeta" not in entry.name and not (libraries / entry.name).exists():
                (libraries / entry.name).symlink_to(entry)
    python = folder / "bin" / "python"
    asked = subprocess.run([python, "-c", "import ray, torch, search"], cwd="/", capture_output=True, text=True)
    assert "No module named 'search'" in asked.stderr
    return python


def wheel(folder: Path) -> Path:
    """Our packages as they are here in a wheel, of this release."""
    release = metadata.version("admeta-search")
    path, info = folder / f"admeta_search-{release}-py3-none-any.whl", f"admeta_search-{release}.dist-info"
    contents = {
        str(file.relative_to(ROOT)): file.read_bytes()
        for package in PACKAGES
        for file in sorted((ROOT / package).rglob("*"))
        if file.is_file() and "__pycache__" not in file.parts
    }
    contents[f"{info}/METADATA"] = f"Metadata-Version: 2.1\nName: admeta-search\nVersion: {release}\n".encode()
    contents[f"{info}/WHEEL"] = b"Wheel-Version: 1.0\nGenerator: tests\nRoot-Is-Purelib: true\nTag: py3-none-any\n"
    record = "".join(f"{name},sha256={_digest(content)},{len(content)}\n" for name, content in contents.items())
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, content in contents.items():
            archive.writestr(name, content)
        archive.writestr(f"{info}/RECORD", f"{record}{info}/RECORD,,\n")
    return path


def _digest(content: bytes) -> str:
    return base64.urlsafe_b64encode(hashlib.sha256(content).digest()).rstrip(b"=").decode()
