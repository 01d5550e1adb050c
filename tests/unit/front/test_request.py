from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from selfspec.request import GenerationOptions, make_options, make_request
from selfspec_runtime.errors import UsageError
from selfspec_runtime.sampling_choice import SamplingChoice

if TYPE_CHECKING:
    from selfspec import SpeculativeModel


def test_options_are_gathered() -> None:
    def never(ids: list[int]) -> bool:
        return False

    options = make_options(max_new_tokens=9, temperature=0.5, stop="END", criteria=never, system="s", num_beams=1)
    assert options == GenerationOptions(
        max_new_tokens=9, sampling=SamplingChoice(temperature=0.5), stop=("END",), criteria=(never,), system="s"
    )


@pytest.mark.parametrize(
    ("unsupported", "message"),
    [
        ({"num_beams": 4}, r"Beam search is not supported.*Leave num_beams out\."),
        ({"num_return_sequences": 3}, "one text at a time: call it again with another seed"),
        ({"batch_size": 8}, "batch size 1"),
        ({"do_sample": True}, "follows from the temperature"),
        ({"max_new_token": 3}, "no option 'max_new_token'. Did you mean max_new_tokens?"),
        ({"xyzzy": 3}, "no option 'xyzzy'. It has max_new_tokens, temperature"),
    ],
)
def test_options_of_others_are_refused_with_a_remedy(unsupported: dict[str, Any], message: str) -> None:
    with pytest.raises(UsageError, match=message):
        make_options(**unsupported)


def test_the_models_own_ends_count(ngram_model: SpeculativeModel) -> None:
    options = make_options(stop=["END", "END"])
    request = make_request("hi", options, ngram_model.loaded, ngram_model.defaults)
    assert request.settings.eos_token_ids == (2,)
    assert request.settings.stop == ("END",)
    assert request.settings.processors is ngram_model.model.generation_config


@pytest.mark.parametrize("token_id", [-1, 128])
def test_ids_that_the_model_does_not_know_are_refused(ngram_model: SpeculativeModel, token_id: int) -> None:
    with pytest.raises(UsageError, match=f"the token id {token_id}, and the model knows 0 to 127"):
        ngram_model.generate([5, token_id])
