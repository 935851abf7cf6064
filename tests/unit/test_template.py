from __future__ import annotations

import gc
import json
import re
from pathlib import Path

import jinja2
import pytest
from jinja2.sandbox import ImmutableSandboxedEnvironment

from cherenkov.errors import CorruptModel, RequestError, TemplateError
from cherenkov.text.controls import Controls
from cherenkov.text.template import ChatTemplate
from cherenkov.text.template_worker import Renderer
from cherenkov.text.tokenizer import Tokenizer

ROOT = Path(__file__).parents[2]
DEMO = ROOT / "cherenkov" / "demo"
REAL = ROOT / "../shared/reference/qwen3.8"
USER = [{"role": "user", "content": "Hi"}]


@pytest.fixture(scope="module")
def tokenizer():
    return Tokenizer.open(DEMO)


@pytest.fixture(scope="module")
def glow(tokenizer):
    with ChatTemplate.open(DEMO, tokenizer.controls) as template:
        yield template


def rendered(source: str, values: dict | None = None, **options) -> str:
    with ChatTemplate(source, Controls(), **options) as template:
        return template.render(USER, **(values or {})).text


def test_the_prompt_of_the_demo(glow):
    text = "<|im_start|>user\nHi<|im_end|>\n<|im_start|>assistant\n"
    assert glow.render(USER).text == text + "<think>\n\n</think>\n\n"
    assert glow.render(USER, thinking=True).text == text + "<think>\n"
    assert glow.render(USER, answer=False).text == "<|im_start|>user\nHi<|im_end|>\n"


def test_an_ordinary_conversation_is_one_piece_and_encodes_as_its_text(glow, tokenizer):
    messages = [
        {"role": "system", "content": " Be brief. "},
        {"role": "user", "content": [{"type": "text", "text": "2 < 3?"}]},
        {"role": "assistant", "content": "Yes", "reasoning_content": "compare"},
        {"role": "tool", "content": "18C"},
        {"role": "user", "content": "> why"},
    ]
    tools = [{"type": "function", "function": {"name": "f", "description": "é <b>"}}]
    prompt = glow.render(messages, tools=tools)
    assert len(prompt.pieces) == 1
    assert '{"type": "function", "function": {"name": "f", "description": "é <b>"}}' in prompt.text
    assert "<think>\ncompare\n</think>\n\nYes<|im_end|>" in prompt.text
    ids = tokenizer.encode_pieces(prompt.pieces)
    assert ids == tokenizer.encode(prompt.text, special=True)


def test_the_published_template_renders_its_example():
    if not REAL.exists():
        pytest.skip(f"the published template is not at {REAL}")
    call = {"name": "get_weather", "arguments": {"city": "Paris", "days": 2, "opts": {"a": [1]}}}
    parameters = {
        "type": "object",
        "properties": {"city": {"type": "string"}},
        "required": ["city"],
    }
    function = {"name": "get_weather", "description": "Get weather", "parameters": parameters}
    messages = [
        {"role": "system", "content": "You are helpful."},
        {"role": "user", "content": "Weather in Paris?"},
        {
            "role": "assistant",
            "content": "",
            "reasoning_content": "need tool",
            "tool_calls": [{"type": "function", "function": call}],
        },
        {"role": "tool", "content": "18C"},
    ]
    source = (REAL / "qwen3.8.chat_template.jinja").read_text()
    with ChatTemplate(source, Controls()) as template:
        text = template.render(
            messages, thinking=True, tools=[{"type": "function", "function": function}]
        ).text
    assert text.rstrip("\n") == (REAL / "qwen3.8.example_render.txt").read_text().rstrip("\n")


# --- what templates find ---


def test_blocks_are_trimmed_and_loops_can_stop():
    source = (
        "  {% for i in range(9) %}\n{% if i == 2 %}{% break %}{% endif %}\n{{ i }}\n  {% endfor %}"
    )
    assert rendered(source) == "0\n1\n"


def test_tojson_is_plain_json():
    source = "{{ {'b': '<é>&\\'', 'a': 1}|tojson }} {{ 'é'|tojson(true) }} {{ {'b':1,'a':2}|tojson(sort_keys=true, indent=1) }}"
    assert rendered(source) == '{"b": "<é>&\'", "a": 1} "\\u00e9" {\n "a": 2,\n "b": 1\n}'


def test_the_cut_survives_ascii_json():
    with ChatTemplate("{{ messages[0].content|tojson(true) }}", Controls(special=("<|a|>",))) as t:
        prompt = t.render([{"role": "user", "content": "é<|a|>🚀"}])
    assert prompt.pieces == ('"\\u00e9<', '|a|>\\ud83d\\ude80"')


def test_what_is_generated_is_a_scope_and_nothing_else():
    source = "{% set x = 1 %}\n{% generation %}\n{% set x = 2 %}\n[{{ x }}]\n{% endgeneration %}\n{{ x }}"
    assert rendered(source) == "[2]\n1"
    with pytest.raises(TemplateError, match="line 1: TemplateSyntaxError"):
        rendered("{% generation %}x")


def test_expressions_mean_what_they_mean_in_jinjas_own_sandbox():
    values = {"m": {"role": "user", "items": 1, "_x": 2, "a b": 3, "f": {}}, "l": [1], "s": "x"}
    names = ["role", "items", "keys", "_x", "__class__", "nothing", "update", "f.g", "get('role')"]
    sources = [f"{{{{ {v}.{name} }}}}" for v in "mls" for name in names]
    sources += ["{{ m['items'] }}{{ m['keys'] is callable }}{{ m['a b'] }}{{ m|attr('role') }}"]
    sources += [
        (
            "{% macro f(a, b=2) %}{{ a }}{{ b }}{{ varargs }}{{ kwargs }}{% endmacro %}"
            "{{ f(1) }}{{ f(1, b=3) }}{{ f(1, 2, 3, x=4) }}"
        ),
        "{% macro f(a) %}{{ a }}{% endmacro %}{{ f(1, 2) }}",
        "{% macro f() %}{{ caller() }}{% endmacro %}{% call f() %}x{% endcall %}",
        "{% macro f(a, b=2) %}{{ a }}{{ b }}{% endmacro %}{{ f() }}{{ f(1) }}{{ f(1, 3) }}{{ f(b=4) }}",
        "{% macro f(a) %}{{ a }}{{ varargs }}{{ kwargs }}{% endmacro %}{{ f(1) }}{{ f(1, 2, b=3) }}",
        "{% macro f(a) %}<{{ a }}>{% endmacro %}{% autoescape true %}{{ f('<') }}{% endautoescape %}",
        "{% macro f(a) %}{{ a }}{{ caller() }}{% endmacro %}{{ f(1) }}",
        "{% macro f(caller) %}{{ caller }}{% endmacro %}{{ f(1) }}{{ f() }}",
        "{% macro f(a) %}{{ caller }}{% endmacro %}{{ f(1) }}{{ f(1, caller=2) }}",
        (
            "{% for i in l %}{% set x = s.upper() %}{{ x }}{{ loop.first }}{{ loop.previtem }}"
            "{% macro f(a) %}{{ a }}{{ i }}{% endmacro %}{{ f(i) }}{% endfor %}"
        ),
        "{% set n = namespace(a=1, c=none) %}{{ n.a }}{{ n.c }}{{ n.b }}",
        "{{ '{0.__class__}'.format(1) }}",
        "{{ '{a}'.format_map({'a': 1}) }}{{ '{a.__class__}'.format_map({'a': 1}) }}",
        "{% set n = namespace(f='{0.__class__}'.format) %}{{ n.f(1) }}",
        "{{ s.join(s) }}{{ s.split(sep='x') }}{{ s.split(nothing=1) }}",
        "{{ m.update({}) }}{{ l.append(1) }}",
    ]
    ours = Renderer(1000)._environment
    own = ImmutableSandboxedEnvironment(trim_blocks=True, lstrip_blocks=True)

    def result(environment, source: str) -> str:
        try:
            return environment.from_string(source).render(values)
        except (jinja2.TemplateError, TypeError) as error:
            return f"{type(error).__name__}: {error}"

    for source in [source for source in sources for _ in range(2)]:  # what is known and what not
        expected, found = result(own, source), result(ours, source)
        assert re.sub("0x[0-9a-f]+", "", found) == re.sub("0x[0-9a-f]+", "", expected)


def test_a_render_leaves_nothing_behind():
    """Macros and what they see hold each other; what waits for the collector is memory that the next render cannot use."""
    renderer = Renderer(1000)
    renderer.answer({"source": "{% macro f(a) %}{{ a }}{{ x }}{% endmacro %}{{ f(1) }}"})
    gc.collect()
    gc.disable()
    try:
        answer = renderer.answer({"values": {"x": "y"}, "own": {}, "cut": 0xFDD0})
        assert gc.collect() == 0
    finally:
        gc.enable()
        gc.unfreeze()
    assert answer == {"text": "1y"}


def test_strftime_now():
    assert re.fullmatch(r"\d{4}-\d\d", rendered("{{ strftime_now('%Y-%m') }}"))


def test_named_tokens_are_variables():
    assert rendered("{{ bos_token }}{{ eos_token }}", tokens={"bos_token": "B"}) == "B"


def test_allowed_variables_and_no_others():
    source = "{{ reasoning_effort }} {{ enable_thinking }} {{ tools }} {{ documents }}"
    assert rendered(source, {"reasoning_effort": "low", "tools": []}) == "low False None None"
    with pytest.raises(RequestError, match="chat_template: not a variable") as caught:
        rendered(source, {"chat_template": "x"})
    assert caught.value.param == "chat_template"


@pytest.mark.parametrize("value", [None, 5, ["low"], {"a": 1}])
def test_variables_are_strings_or_switches(value):
    with pytest.raises(RequestError, match=r"reasoning_effort = .*a string or a bool") as caught:
        rendered("x", {"reasoning_effort": value})
    assert caught.value.param == "reasoning_effort"


def test_lipsum_is_gone():
    with pytest.raises(TemplateError, match="UndefinedError"):
        rendered("{{ lipsum() }}")


# --- where templates come from ---


def _folder(tmp_path: Path, config: object = None, jinja: str | bytes | None = None) -> Path:
    if config is not None:
        (tmp_path / "tokenizer_config.json").write_text(json.dumps(config))
    if jinja is not None:
        data = jinja if isinstance(jinja, bytes) else jinja.encode()
        (tmp_path / "chat_template.jinja").write_bytes(data)
    return tmp_path


NAMED = [{"name": "tool_use", "template": "T"}, {"name": "default", "template": "D"}]


@pytest.mark.parametrize(
    ("config", "jinja", "text"),
    [
        (None, "J", "J"),
        ({"chat_template": "C"}, "J", "J"),
        ({"chat_template": "C"}, None, "C"),
        ({"chat_template": NAMED}, None, "D"),
        ({"chat_template": "{{ bos_token }}", "bos_token": {"content": "<s>"}}, None, "<s>"),
        ({"bos_token": "<s>"}, "{{ bos_token }}", "<s>"),
    ],
)
def test_sources_in_order(tmp_path, config, jinja, text):
    with ChatTemplate.open(_folder(tmp_path, config, jinja), Controls()) as template:
        assert template.render(USER).text == text


@pytest.mark.parametrize(
    "config", [None, {}, {"chat_template": None}, {"chat_template": NAMED[:1]}]
)
def test_no_template_suggests_raw(tmp_path, config):
    with pytest.raises(TemplateError, match=r"has no chat template: .*--raw"):
        ChatTemplate.open(_folder(tmp_path, config), Controls())


@pytest.mark.parametrize(
    ("config", "jinja", "reason"),
    [
        ({"chat_template": 5}, None, "chat_template: must be a string"),
        ({"chat_template": "x" * (1 << 21)}, None, "chat_template: must be a string"),
        ([], "J", "not a JSON object"),
        (None, b"\xff", "is not UTF-8"),
        (None, "x" * (1 << 21), "too long"),
    ],
)
def test_malformed_folders(tmp_path, config, jinja, reason):
    with pytest.raises(CorruptModel, match=reason):
        ChatTemplate.open(_folder(tmp_path, config, jinja), Controls())


# --- messages that are not ---


@pytest.mark.parametrize(
    "messages",
    [[], None, "hi", {}, [1], [{}], [{"role": 1}], [{"role": "user", "content": {1, 2}}]],
)
def test_messages_are_checked(glow, messages):
    with pytest.raises(RequestError, match="message") as caught:
        glow.render(messages)
    assert caught.value.param == "messages"


def test_deep_messages_are_refused(glow):
    content: list = []
    for _ in range(100_000):
        content = [content]
    with pytest.raises(RequestError, match="cannot be written as JSON"):
        glow.render([{"role": "user", "content": content}])


def test_circular_messages_are_refused(glow):
    message: dict = {"role": "user"}
    message["content"] = [message]
    with pytest.raises(RequestError, match="cannot be written as JSON"):
        glow.render([message])


@pytest.mark.parametrize(
    ("messages", "reason"),
    [
        ([{"role": "system", "content": "x"}], "No user query found in messages."),
        ([*USER, {"role": "critic", "content": "x"}], "Unexpected message role."),
        ([{"role": "user", "content": [{"type": "image"}]}], "Only text content is supported."),
    ],
)
def test_the_templates_own_words_are_passed_on(glow, messages, reason):
    with pytest.raises(TemplateError, match=re.escape(f"refused the messages: {reason}")):
        glow.render(messages)
    assert glow.render(USER).text.startswith("<|im_start|>user")


def test_foreign_words_stay_on_one_printable_line():
    with pytest.raises(TemplateError) as caught:
        rendered("{{ raise_exception('a\\n\\x1b[31mb' ~ 'x' * 900) }}")
    message = str(caught.value)
    assert message.isprintable()
    assert "a [31mb" in message
    assert len(message) < 400


def test_errors_name_the_line():
    with pytest.raises(TemplateError, match="failed at line 3: TemplateSyntaxError"):
        rendered("a\nb\n{% for %}")
    with pytest.raises(TemplateError, match="failed at line 2: UndefinedError"):
        rendered("a\n{{ nothing.at.all }}")
