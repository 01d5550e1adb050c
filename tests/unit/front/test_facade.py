from __future__ import annotations

import subprocess
import sys
from importlib.metadata import version

import pytest

import selfspec


def modules_after(statement: str) -> set[str]:
    """Top-level modules that a fresh interpreter has imported after a statement."""
    script = f"import sys\n{statement}\nprint('\\n'.join({{name.split('.')[0] for name in sys.modules}}))"
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    return set(done.stdout.split())


def test_importing_selfspec_imports_nothing_heavy() -> None:
    loaded = modules_after("import selfspec; dir(selfspec); selfspec.__version__")
    assert loaded.isdisjoint({"torch", "transformers", "optuna", "pydantic", "numpy", "selfspec_runtime"})


@pytest.mark.parametrize("name", selfspec.__all__)
def test_every_exported_name_resolves(name: str) -> None:
    assert getattr(selfspec, name) is not None
    assert name in dir(selfspec)


def test_the_exported_names_are_sorted_and_complete() -> None:
    assert selfspec.__all__ == sorted(selfspec.__all__)
    assert set(selfspec.__all__) == {*selfspec._HOMES, "__version__"}


def test_the_version_is_the_installed_one() -> None:
    assert selfspec.__version__ == version("selfspec")


def test_an_unknown_name_is_an_attribute_error() -> None:
    with pytest.raises(AttributeError, match="no attribute 'laod'"):
        selfspec.laod  # noqa: B018 - the access is what is tested
