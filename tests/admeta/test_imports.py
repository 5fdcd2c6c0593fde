"""Import paths: their form, what an operator allows, and what loading one refuses."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from admeta.errors import ImportPathError
from admeta.imports import MAX_MESSAGE, check_allowed, code_lines, in_words, load, source_files, split_path

Write = Callable[..., None]


@pytest.fixture
def write(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Write:
    """Writes modules into an importable folder; they are forgotten after the test."""
    before = set(sys.modules)
    monkeypatch.syspath_prepend(str(tmp_path))

    def write(**modules: str) -> None:
        for name, text in modules.items():
            (tmp_path / f"{name}.py").write_text(text)

    yield write
    for name in set(sys.modules) - before:
        if name.startswith("own_"):
            del sys.modules[name]


@pytest.mark.parametrize("path", ["train", "a:b.c", "a:b:c", ":b", "a:", "a b:c", "a..b:c", ".a:b", "a:b\n", "ä:b", ""])
def test_a_malformed_path_is_refused(path: str) -> None:
    with pytest.raises(ImportPathError, match=r"is not an import path; write the module, a colon and one name"):
        split_path(path)


def test_a_path_with_a_dot_for_the_colon_is_told_what_was_meant() -> None:
    with pytest.raises(ImportPathError, match=r"Did you mean 'torch\.optim:NAdam'\?$"):
        split_path("torch.optim.NAdam")


def test_a_module_allows_itself_and_those_inside_it() -> None:
    for path in ("torch.optim:NAdam", "torch.optim.nadam:NAdam"):
        check_allowed(path, ["torch.optim"])
    for path in ("torch.optimizers:NAdam", "torch:optim", "os:system"):
        with pytest.raises(ImportPathError, match=r"which are: torch\.optim\. Its operator can allow another with"):
            check_allowed(path, ["torch.optim"])
    with pytest.raises(ImportPathError, match="which are: nothing"):
        check_allowed("torch.optim:NAdam", [])


def test_an_object_is_loaded(write: Write) -> None:
    write(own_fine="def train(ctx): return 7\nLIMIT = 3\n")
    assert load("own_fine:train")(None) == 7
    assert load("own_fine:LIMIT") == 3


def test_what_a_module_imported_is_not_given_away(write: Write) -> None:
    write(own_leak="from os.path import join\nfrom subprocess import Popen as train\n")
    with pytest.raises(ImportPathError, match="'train' is made in the module 'subprocess'"):
        load("own_leak:train")


def test_a_failed_import_tells_the_line(write: Write) -> None:
    write(own_broken="import math\n\n\ndef make():\n    return 1 / 0\n\n\nX = make()\n")
    reason = (
        r"ZeroDivisionError: division by zero \(own_broken.py, line 8, in <module>; own_broken.py, line 5, in make\)"
    )
    with pytest.raises(ImportPathError, match=reason):
        load("own_broken:X")
    with pytest.raises(ImportPathError, match=r"No module named 'own_absent'\. Install the package on the workers"):
        load("own_absent:x")
    with pytest.raises(ImportPathError, match=r"Name the module without \.py: 'own_broken:make'$"):
        load("own_broken.py:make")
    write(own_typo="def f(: pass\n")
    with pytest.raises(ImportPathError, match=r"SyntaxError: .*\. Correct the code and submit again$"):
        load("own_typo:f")
    write(own_script="import sys\n\nsys.exit('usage: own_script')\n")
    with pytest.raises(ImportPathError, match=r"usage: own_script \(own_script.py, line 3, in <module>\)\. Put what"):
        load("own_script:train")
    write(own_empty="")
    with pytest.raises(ImportPathError, match="module 'own_empty' has no 'train'"):
        load("own_empty:train")


def test_lines_of_other_code_are_left_out(write: Write) -> None:
    write(own_json="import json\n\n\ndef train():\n    json.loads('{')\n")
    with pytest.raises(ValueError, match="Expecting") as raised:
        load("own_json:train")()
    assert code_lines(raised.value, "own_json") == " (own_json.py, line 5, in train)"


def test_messages_are_cut_and_may_not_be_readable() -> None:
    class SilentError(Exception):
        def __str__(self) -> str:
            raise KeyError("words")

    assert in_words(SilentError()) == "SilentError: (its message cannot be read)"
    assert in_words(ValueError()) == "ValueError: no message"
    assert in_words(ValueError("ab" * MAX_MESSAGE)) == f"ValueError: {'ab' * 1000} … {'ab' * 1000}"


def test_the_source_of_a_module_is_what_it_imports_from_its_folder(write: Write, tmp_path: Path) -> None:
    write(
        own_a="import json\nimport torch\nfrom own_b import x\n",
        own_b="def x():\n    import own_c\n",
        own_c="",
        own_d="",
    )
    assert set(source_files("own_a:x")) == {"own_a.py", "own_b.py", "own_c.py"}
    assert set(source_files("own_d:x")) == {"own_d.py"}
    package = tmp_path / "own_package"
    package.mkdir()
    for name, text in {
        "__init__": "",
        "net": "from . import layers\nimport own_d\n",
        "layers": "",
        "other": "",
    }.items():
        (package / f"{name}.py").write_text(text)
    inside = {f"own_package/{name}.py" for name in ("__init__", "net", "layers")}
    assert set(source_files("own_package.net:Net")) == {*inside, "own_d.py"}
    assert "own_a" not in sys.modules
    for text in ("def (", "import own_e", "x = " + "+".join(["1"] * 100_000)):
        write(own_d=text, own_e="x" + ".a" * 20_000)
        assert {"own_d.py"} <= set(source_files("own_d:x")) <= {"own_d.py", "own_e.py"}


def test_the_source_of_an_installed_package_is_all_of_it() -> None:
    found = source_files("optuna:create_study")
    assert {"optuna/__init__.py", "optuna/study/study.py"} <= set(found)
    assert source_files("math:sqrt") == source_files("own_absent:x") == {}
