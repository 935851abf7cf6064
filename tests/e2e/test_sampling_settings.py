"""Settings of sampling, through a whole model."""

import pytest

from cherenkov import Model, Sampling
from cherenkov.errors import RequestError

QUESTION = "What is the capital of France?"


@pytest.fixture(scope="module")
def model(glow_store):
    with Model.load(glow_store, context_tokens=512) as loaded:
        yield loaded


def tokens(model, sampling, **options):
    """Ids of twelve tokens; decoding and encoding is exact for the words that are forced here."""
    return model.generate(QUESTION, max_tokens=12, ignore_eos=True, sampling=sampling, **options)


def test_occurrences_in_the_answer_count(model):
    first, second = (model.tokenizer.encode(word)[0] for word in (" yes", " no"))
    words = [model.tokenizer.decode([i]) for i in (first, second)]
    biases = {first: 100, second: 100}
    said = tokens(model, Sampling(logit_bias=biases))
    assert said in {word * 12 for word in words}
    # Each time a word is said it loses 2 against the other, so that they take turns before long.
    said = tokens(model, Sampling(frequency_penalty=2, logit_bias=biases))
    assert "".join(words) * 3 in said
    assert said.count(words[0]) + said.count(words[1]) == 12


def test_the_prompt_counts(model):
    """A penalty without a bias changes the answer that the prompt's own words make up."""
    plain = model.generate(QUESTION)
    punished = model.generate(QUESTION, sampling=Sampling(presence_penalty=2, repetition_penalty=9))
    assert plain == "The capital of France is Paris."
    assert punished != plain


def test_same_seed_same_text_on_every_pool(glow_store):
    sampling = Sampling(
        1.0, top_p=0.9, seed=5, min_p=0.01, presence_penalty=0.5, repetition_penalty=1.1
    )
    texts = set()
    for pool in (0.01, "max"):
        with Model.load(glow_store, context_tokens=512, pool=pool) as model:
            texts.add(tokens(model, sampling))
    assert len(texts) == 1


def test_a_bias_beyond_the_vocabulary(model):
    with pytest.raises(RequestError, match="there is no token 999999"):
        tokens(model, Sampling(logit_bias={999_999: 1}))


def test_settings_may_be_given_one_by_one(model):
    whole = tokens(model, Sampling(1.0, top_k=50, seed=3))
    assert tokens(model, Sampling(), temperature=1.0, top_k=50, seed=3) == whole
    assert tokens(model, Sampling(1.0, seed=3), top_k=50) == whole
    assert "".join(model.stream(QUESTION, max_tokens=5, temperature=0.0)) == model.generate(
        QUESTION, max_tokens=5
    )


@pytest.mark.parametrize(
    ("options", "param", "message"),
    [
        ({"temprature": 1.0}, "temprature", "did you mean temperature"),
        ({"logprobs": True}, "logprobs", "there is no such option"),
        ({"top_p": 2.0}, "top_p", "at most 1"),
        ({"sampling": 5}, "sampling", "must be a Sampling"),
    ],
)
def test_settings_that_make_no_sense_are_named(model, options, param, message):
    with pytest.raises(RequestError, match=message) as refused:
        model.generate(QUESTION, **options)
    assert refused.value.param == param
