from __future__ import annotations

import subprocess
import sys

import pytest
from pydantic import ValidationError

from selfspec_runtime.model_spec import ModelSpec


def test_only_the_model_is_needed() -> None:
    spec = ModelSpec(model="m")
    assert (spec.dtype, spec.device, spec.quantization) == ("auto", "auto", "none")
    assert spec.trust_remote_code is False


def test_it_survives_a_file_and_is_frozen() -> None:
    spec = ModelSpec(model="m", dtype="bfloat16", quantization="bnb-4bit", adapter_path="a")
    assert ModelSpec.model_validate_json(spec.model_dump_json()) == spec
    with pytest.raises(ValidationError):
        spec.model = "n"  # type: ignore[misc]


@pytest.mark.parametrize(
    "wrong", [{"dtype": "float8"}, {"quantization": "int4"}, {"load_in_4bit": True}, {"model": None}]
)
def test_values_outside_of_the_contract_are_refused(wrong: dict[str, object]) -> None:
    with pytest.raises(ValidationError):
        ModelSpec.model_validate({"model": "m", **wrong})


def test_importing_it_imports_neither_torch_nor_transformers() -> None:
    code = "import sys, selfspec_runtime.model_spec; print({'torch', 'transformers'} & set(sys.modules))"
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert run.stdout.strip() == "set()"
