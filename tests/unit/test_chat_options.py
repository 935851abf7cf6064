"""Options of conversations: taken over, combined, refused."""

import pytest

from cherenkov.chat.options import ChatOptions, Settings
from cherenkov.errors import RequestError
from cherenkov.sampling import Sampling


def test_defaults():
    settings = Settings()
    assert settings.sampling == Sampling()
    assert settings.max_tokens is None
    assert settings.variables == {}
    assert settings.updated({}) == settings


def test_every_option_arrives():
    given: ChatOptions = {
        "temperature": 0.5,
        "top_k": 3,
        "top_p": 0.9,
        "seed": 4,
        "min_p": 0.1,
        "presence_penalty": 1,
        "frequency_penalty": -1,
        "repetition_penalty": 1.1,
        "logit_bias": {5: 2},
        "max_tokens": 7,
        "stop": ["a", "b", "a"],
        "thinking": True,
        "reasoning_effort": "low",
        "preserve_thinking": False,
        "logprobs": True,
        "top_logprobs": 2,
        "sampling": None,
    }
    assert set(given) == set(ChatOptions.__annotations__)
    settings = Settings().updated(given)
    assert settings.sampling == Sampling(0.5, 3, 0.9, 4, 0.1, 1, -1, 1.1, {5: 2})
    assert settings.max_tokens == 7
    assert settings.stop == ("a", "b")
    assert settings.thinking
    assert settings.variables == {"reasoning_effort": "low", "preserve_thinking": False}
    assert settings.top_logprobs == 2


def test_what_is_not_said_stays():
    first = Settings().updated({"temperature": 0.5, "max_tokens": 3, "stop": "x"})
    second = first.updated({"top_p": 0.5})
    assert second.sampling == Sampling(0.5, top_p=0.5)
    assert (second.max_tokens, second.stop) == (3, ("x",))
    assert second.updated({"stop": None, "max_tokens": None}).stop == ()


def test_sampling_as_a_whole_and_one_by_one():
    base = Sampling(1.0, seed=3)
    assert Settings().updated({"sampling": base}).sampling == base
    assert Settings().updated({"sampling": base, "seed": 4}).sampling == Sampling(1.0, seed=4)


@pytest.mark.parametrize(
    ("options", "wanted"),
    [
        ({"logprobs": True}, 0),
        ({"top_logprobs": 3}, 3),
        ({"logprobs": True, "top_logprobs": 3}, 3),
        ({"logprobs": False}, None),
        ({"logprobs": False, "top_logprobs": 0}, None),
    ],
)
def test_logprobs(options, wanted):
    assert Settings().updated(options).top_logprobs == wanted


@pytest.mark.parametrize(
    ("options", "param", "words"),
    [
        ({"temprature": 1}, "temprature", "did you mean temperature?"),
        ({"zzz": 1}, "zzz", "there is no such option"),
        ({"temperature": -1}, "temperature", "0 or more"),
        ({"temperature": "hot"}, "temperature", "a finite number"),
        ({"temperature": 10**400}, "temperature", "a finite number"),
        ({"seed": 10**5000}, "seed", "thousands of digits"),
        ({"max_tokens": 10**5000}, "max_tokens", "thousands of digits"),
        ({"temperature": 10**5000}, "temperature", "thousands of digits"),
        ({"logit_bias": {10**5000: 1}}, "logit_bias", "thousands of digits"),
        ({"logit_bias": {5: -(10**400)}}, "logit_bias", "from -100 to 100"),
        ({"top_p": 0}, "top_p", "above 0"),
        ({"top_k": 1.5}, "top_k", "a whole number"),
        ({"seed": -1}, "seed", "a whole number"),
        ({"min_p": 2}, "min_p", "from 0 to 1"),
        ({"presence_penalty": 3}, "presence_penalty", "from -2 to 2"),
        ({"repetition_penalty": 0}, "repetition_penalty", "from 0.001 to 10"),
        ({"logit_bias": 5}, "logit_bias", "a mapping"),
        ({"sampling": {}}, "sampling", "must be a Sampling"),
        ({"sampling": 5}, "sampling", "must be a Sampling"),
        ({"max_tokens": 0}, "max_tokens", "1 or more"),
        ({"max_tokens": True}, "max_tokens", "1 or more"),
        ({"max_tokens": 2.0}, "max_tokens", "1 or more"),
        ({"stop": 5}, "stop", "a string or a list"),
        ({"stop": [""]}, "stop", "1 to 256"),
        ({"stop": ["x"] * 100_000}, "stop", "at most 32"),
        ({"stop": "x" * 100_000}, "stop", "1 to 256"),
        ({"thinking": 1}, "thinking", "True or False"),
        ({"reasoning_effort": 5}, "reasoning_effort", "a word"),
        ({"reasoning_effort": "x" * 65}, "reasoning_effort", "a word"),
        ({"preserve_thinking": "no"}, "preserve_thinking", "True or False"),
        ({"logprobs": 1}, "logprobs", "True or False"),
        ({"top_logprobs": 21}, "top_logprobs", "from 0 to 20"),
        ({"top_logprobs": 2, "logprobs": False}, "top_logprobs", "only with logprobs"),
    ],
)
def test_refusals(options, param, words):
    with pytest.raises(RequestError, match=words) as caught:
        Settings().updated(options)
    assert caught.value.param == param
    assert len(str(caught.value)) < 400
    assert "\n" not in str(caught.value)
