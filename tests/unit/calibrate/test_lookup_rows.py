"""What lookups would draft along traces, with tables of other prompts' texts."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.support.contracts import round_context
from tests.support.tiny_models import tiny_target

from selfspec_calibrate.corpus_texts import corpus_texts, fit_corpus
from selfspec_calibrate.folds import fold_arrays, folds
from selfspec_calibrate.lookup_rows import LONGEST, suffix_rows
from selfspec_calibrate.trace import Trace
from selfspec_runtime.drafts.corpus import TOKENS_NAME
from selfspec_runtime.drafts.suffix import SuffixSpec
from selfspec_runtime.errors import PlanError
from selfspec_runtime.sequence import Sequence

TRACES = [
    Trace("a", "test", (1, 2, 3), (4, 5, 6, 7)),
    Trace("b", "test", (9, 3), (4, 5, 8, 7)),
    Trace("c", "test", (20, 21), (22, 23)),
]
CORPUS = SuffixSpec(corpus=True)


def trace_of(prompt: list[int], output: list[int]) -> Trace:
    return Trace("x", "test", tuple(prompt), tuple(output))


@given(prompt=st.lists(st.integers(0, 2), min_size=1, max_size=12), output=st.lists(st.integers(0, 2), max_size=12))
def test_rows_are_what_decoding_would_draft(prompt: list[int], output: list[int]) -> None:
    target, arrays = tiny_target("llama"), fit_corpus(TRACES).final
    for spec in (SuffixSpec(tokens_per_match=1.5), CORPUS):
        rows = suffix_rows(trace_of(prompt, output), spec, arrays)
        source = spec.build(target, arrays)
        for row in range(max(len(output) - 1, 0)):
            ids = [*prompt, *output[: row + 1]]
            context = replace(CONTEXT, sequence=Sequence(ids, device=target.device), budget=LONGEST, room=LONGEST)
            drafted = source.propose(context).token_ids
            following = output[row + 1 :]
            agreed = next(
                (i for i, pair in enumerate(zip(drafted, following, strict=False)) if pair[0] != pair[1]), None
            )
            assert rows.available[row] == len(drafted)
            assert rows.matched[row] == (min(len(drafted), len(following)) if agreed is None else agreed)


CONTEXT = round_context()


def test_a_prompt_is_looked_up_in_other_prompts_texts_alone() -> None:
    scoring = fit_corpus(TRACES, prompts=True).scoring
    found = [
        suffix_rows(trace, CORPUS, fold_arrays(scoring, fold)).matched.tolist()
        for trace, fold in zip(TRACES, folds(TRACES), strict=True)
    ]
    # After 4 the other prompt's text says 5, and then something else; the third prompt's text is nobody else's.
    assert found == [[1, 0, 0], [1, 0, 0], [0]]
    own = suffix_rows(TRACES[2], CORPUS, fit_corpus(TRACES, prompts=True).final)
    assert own.matched.tolist() == [1], "a table that holds the prompt itself would find all of it"


def test_prompts_are_in_the_table_only_if_asked_for() -> None:
    held, asked = (set(fit_corpus(TRACES, prompts=p).final[TOKENS_NAME].tolist()) for p in (False, True))
    assert held == {-1, 4, 5, 6, 7, 8, 22, 23}
    assert asked - held == {1, 2, 3, 9, 20, 21}


def test_without_a_corpus_a_corpus_is_refused() -> None:
    with pytest.raises(PlanError, match="table of calibration texts"):
        suffix_rows(TRACES[0], CORPUS, {})
    assert suffix_rows(TRACES[0], SuffixSpec(), {}).available.tolist() == [0, 0, 0]


def test_a_table_keeps_to_its_size_and_cuts_the_longest_texts_to_their_ends() -> None:
    traces = [trace_of([1], [2]), trace_of(list(range(50)), [60, 61]), trace_of(list(range(20)), [70])]
    texts = corpus_texts(traces, prompts=True, max_tokens=30)
    assert [len(text) for text in texts] == [2, 14, 14]
    assert texts[1][-2:] == (60, 61)
    assert texts[2][-1] == 70
    whole = [trace.prompt_ids + trace.output_ids for trace in traces]
    assert corpus_texts(traces, prompts=True, max_tokens=75) == whole
    assert corpus_texts(traces) == [(2,), (60, 61), (70,)]
    assert corpus_texts([traces[0], traces[0]]) == [(2,)]
    assert corpus_texts([]) == []
    assert corpus_texts(traces, max_tokens=0) == []
    assert len(fit_corpus(TRACES, max_tokens=6).final[TOKENS_NAME]) == 6 + 4
