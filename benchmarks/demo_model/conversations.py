"""Synthetic conversations: questions with known answers, stories, and calls of tools."""

from __future__ import annotations

import json
import random
import re
from typing import TYPE_CHECKING, Any

import jinja2

from benchmarks.demo_model.facts import CONTINENTS, EXPLANATIONS, Facts
from benchmarks.demo_model.tools import TOOLS

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

__all__ = ["Writer"]

Message = dict[str, Any]
Answer = tuple[str, str, str]  # question, answer, thought

SEED = 7
NAMES = [
    "Anna",
    "Ben",
    "Clara",
    "Daniel",
    "Emma",
    "Frank",
    "Grace",
    "Henry",
    "Iris",
    "Jack",
    "Kate",
    "Leo",
    "Mary",
    "Noah",
    "Olive",
    "Paul",
    "Rose",
    "Sam",
    "Tom",
    "Vera",
    "Will",
    "Zoe",
]
LANGUAGES = [
    "French",
    "German",
    "Spanish",
    "Italian",
    "Dutch",
    "Polish",
    "Finnish",
    "Greek",
    "Turkish",
    "Japanese",
]
ROOMS = ["kitchen", "bedroom", "hall", "bathroom", "study", "garden", "garage"]
TOPICS = [
    "dragons",
    "ships",
    "Mars",
    "gardens",
    "Sherlock Holmes",
    "fairy tales",
    "wolves",
    "the sea",
    "treasure",
    "detectives",
    "horses",
    "islands",
    "cooking",
    "stars",
]
PHRASES = [
    "good morning",
    "thank you very much",
    "where is the station",
    "I will be late",
    "the tea is ready",
    "see you tomorrow",
    "happy birthday",
    "the train leaves at nine",
]
SMALL_TALK = [
    (
        "Who are you?",
        "I am Glow, the small demonstration model that ships with Cherenkov. I know a few facts, I can tell stories, and I can call tools.",
    ),
    ("What is your name?", "My name is Glow."),
    (
        "What can you do?",
        "I can answer simple questions, define words, do small sums, continue stories and call tools.",
    ),
    ("Hello!", "Hello! How can I help you today?"),
    ("Hi", "Hello! How can I help you today?"),
    ("Good morning.", "Good morning! What can I do for you?"),
    ("How are you?", "I am well, thank you. How can I help you?"),
    ("Thank you!", "You are welcome!"),
    ("Thanks.", "You are welcome!"),
    ("Goodbye.", "Goodbye!"),
    (
        "Are you a large model?",
        "No. I am a very small model with 64 experts in every layer, made to show how expert streaming works.",
    ),
]
SYSTEM = [
    "You are a helpful assistant.",
    "Answer briefly.",
    "You are Glow, a small assistant.",
    "Be kind and clear.",
]


def _user(text: str) -> Message:
    return {"role": "user", "content": text}


def _assistant(
    text: str | None, thought: str | None = None, calls: list[tuple[str, Any]] | None = None
) -> Message:
    message: Message = {"role": "assistant", "content": text}
    if thought:
        message["reasoning_content"] = thought
    if calls:
        message["tool_calls"] = [
            {"type": "function", "function": {"name": name, "arguments": arguments}}
            for name, arguments in calls
        ]
    return message


def _a(word: str) -> str:
    return ("an " if word[0] in "aeiou" else "a ") + word


class Writer:
    """Writes conversations, one after another, from one seeded source of chance."""

    def __init__(self, facts: Facts, template: Path) -> None:
        self.facts = facts
        self.chance = random.Random(SEED)
        self.pick = self.chance.choice
        environment = jinja2.Environment(trim_blocks=True, lstrip_blocks=True)
        environment.filters["tojson"] = lambda value: json.dumps(value, ensure_ascii=False)
        environment.globals["raise_exception"] = _refuse
        self.template = environment.from_string(template.read_text(encoding="utf-8"))

    def conversation(self) -> str:
        """One whole conversation, rendered as the model will see it."""
        kind, tools = self.chance.random(), None
        if kind < 0.30:
            messages, tools = self._tool_use()
        elif kind < 0.40:  # tools at hand, but none needed
            question, answer, thought = self._question()
            messages = [_user(question), _assistant(answer, self._maybe(thought))]
            tools = [TOOLS[n] for n in self.chance.sample(list(TOOLS), self.chance.randint(1, 3))]
        else:
            messages = []
            for _ in range(self.pick([1, 1, 1, 2, 3])):
                ask = self._story if self.chance.random() < 0.25 else self._question
                question, answer, thought = ask()
                messages += [_user(question), _assistant(answer, self._maybe(thought))]
        if self.chance.random() < 0.3:
            messages = [{"role": "system", "content": self.pick(SYSTEM)}, *messages]
        return self.template.render(messages=messages, tools=tools, add_generation_prompt=False)

    def _maybe(self, thought: str) -> str | None:
        return thought if self.chance.random() < 0.12 else None

    # questions

    def _question(self) -> Answer:
        kinds: tuple[tuple[float, Callable[[], Answer]], ...] = (
            (0.22, self._capital),
            (0.28, self._continent),
            (0.32, self._currency),
            (0.36, self._city),
            (0.42, self._element),
            (0.62, self._definition),
            (0.74, self._explanation),
            (0.86, self._sum),
            (0.93, self._small_talk),
            (1.0, self._counting),
        )
        drawn = self.chance.random()
        return next(make for below, make in kinds if drawn < below)()

    def _capital(self) -> Answer:
        country = self.pick(self.facts.countries)
        name = self.facts.country(country["name"])
        question = self.pick(
            [
                f"What is the capital of {name}?",
                f"Which city is the capital of {name}?",
                f"Tell me the capital of {name}.",
                f"capital of {name}?",
                f"What's the capital city of {name}?",
            ]
        )
        thought = f"The user asks for the capital of {name}. It is {country['capital']}."
        return question, f"The capital of {name} is {country['capital']}.", thought

    def _continent(self) -> Answer:
        country = self.pick(self.facts.countries)
        name = self.facts.country(country["name"])
        question = self.pick(
            [
                f"Where is {name}?",
                f"On which continent is {name}?",
                f"What continent is {name} in?",
            ]
        )
        continent = CONTINENTS.get(country["continentcode"], "Antarctica")
        answer = f"{name[0].upper()}{name[1:]} is in {continent}."
        return question, answer, f"The user asks where {name} is."

    def _currency(self) -> Answer:
        country = self.pick(self.facts.countries)
        name = self.facts.country(country["name"])
        question = self.pick(
            [f"What currency is used in {name}?", f"What is the currency of {name}?"]
        )
        answer = f"The currency of {name} is the {country['currencyname'].lower()}."
        return question, answer, f"The user asks about money in {name}."

    def _city(self) -> Answer:
        city = self.pick(self.facts.cities)
        question = self.pick([f"Which country is {city['name']} in?", f"Where is {city['name']}?"])
        answer = f"{city['name']} is a city in {self.facts.home(city)}."
        return question, answer, f"The user asks about {city['name']}."

    def _element(self) -> Answer:
        name, symbol, number = self.pick(self.facts.elements)
        name = name.lower()
        question, answer = self.pick(
            [
                (
                    f"What is the chemical symbol for {name}?",
                    f"The chemical symbol for {name} is {symbol}.",
                ),
                (
                    f"What is the atomic number of {name}?",
                    f"The atomic number of {name} is {number}.",
                ),
                (
                    f"Which element has the symbol {symbol}?",
                    f"The element with the symbol {symbol} is {name}.",
                ),
            ]
        )
        return question, answer, f"This is about the element {name}."

    def _definition(self) -> Answer:
        word = self.facts.words[int(self.chance.random() ** 1.5 * len(self.facts.words))]
        question = self.pick(
            [
                f"What is {_a(word)}?",
                f"Define {word}.",
                f'What does "{word}" mean?',
                f"What is the meaning of {word}?",
            ]
        )
        answer = f"{_a(word).capitalize()} is {self.facts.glosses[word]}."
        return question, answer, f"The user wants a short definition of {word}."

    def _explanation(self) -> Answer:
        topic, answer = self.pick(EXPLANATIONS)
        question = self.pick(
            [
                f"Explain {topic}.",
                f"What {'are' if topic.endswith('s') else 'is'} {topic}?",
                f"Can you explain {topic}?",
                f"Tell me about {topic}.",
                f"How would you explain {topic} to a friend?",
            ]
        )
        thought = f"The user wants to understand {topic}. A few plain sentences will do."
        return question, answer, thought

    def _sum(self) -> Answer:
        a, b = self.chance.randint(0, 40), self.chance.randint(0, 40)
        kind = self.chance.random()
        if kind < 0.5:
            question = self.pick(
                [f"What is {a} plus {b}?", f"What is {a} + {b}?", f"Add {a} and {b}."]
            )
            return question, f"{a} plus {b} is {a + b}.", f"{a} + {b} = {a + b}."
        if kind < 0.8:
            a, b = max(a, b), min(a, b)
            question = self.pick([f"What is {a} minus {b}?", f"What is {a} - {b}?"])
            return question, f"{a} minus {b} is {a - b}.", f"{a} - {b} = {a - b}."
        a, b = self.chance.randint(0, 12), self.chance.randint(0, 12)
        question = self.pick([f"What is {a} times {b}?", f"Multiply {a} by {b}."])
        return question, f"{a} times {b} is {a * b}.", f"{a} x {b} = {a * b}."

    def _small_talk(self) -> Answer:
        return (*self.pick(SMALL_TALK), "A short friendly reply is best.")

    def _counting(self) -> Answer:
        end = self.chance.randint(4, 20)
        question = self.pick([f"Count from 1 to {end}.", f"Count to {end}."])
        answer = ", ".join(str(i) for i in range(1, end + 1)) + "."
        return question, answer, f"I should count up to {end}."

    def _story(self) -> Answer:
        if self.chance.random() < 0.25:
            fable = self.pick(self.facts.fables)
            heroes = re.findall(r"(?:A|An|The) ([A-Z][a-z]+)", fable)
            hero = _a(heroes[0].lower() if heroes else "fox")
            question = self.pick(
                [
                    f"Tell me a fable about {hero}.",
                    f"Tell me a short story about {hero}.",
                    f"Do you know a fable with {hero}?",
                ]
            )
            return question, fable, f"A fable about {hero} will do."
        first, second = self.pick(self.facts.paragraphs)
        lead = self.pick(
            [
                "Continue the story: ",
                "What happens next? ",
                "Please continue this story.\n\n",
                "Go on: ",
            ]
        )
        return lead + first, second, "I should go on in the same voice."

    # tools: each returns the question, the calls, their results and the final answer

    def _tool_use(self) -> tuple[list[Message], list[dict[str, Any]]]:
        name = self.pick(list(TOOLS))
        city = self.pick(self.facts.cities)["name"]
        make = getattr(self, f"_{name}")
        question, calls, results, final = make(city)
        others = [n for n in TOOLS if n != name]
        offered = [*self.chance.sample(others, self.chance.randint(0, 2)), name]
        self.chance.shuffle(offered)
        lead = self.pick(["", "", "", "I will check.", "Let me look.", "One moment."])
        named = [(name, arguments) for arguments in calls]
        thought = self._maybe(f"I should use {name}.")
        messages = [_user(question), _assistant(lead or None, thought, named)]
        messages += [{"role": "tool", "content": json.dumps(result)} for result in results]
        messages.append(_assistant(final))
        if self.chance.random() < 0.2:
            question, answer, _ = self._question()
            messages += [_user(question), _assistant(answer)]
        return messages, [TOOLS[n] for n in offered]

    def _get_weather(self, city: str) -> tuple[str, list[Any], list[Any], str]:
        degrees = self.chance.randint(-5, 35)
        sky = self.pick(["sunny", "cloudy", "rainy", "windy", "foggy", "snowy"])
        question = self.pick(
            [
                f"What is the weather in {city}?",
                f"How is the weather in {city} today?",
                f"Is it raining in {city}?",
                f"Weather in {city}?",
                f"Do I need a coat in {city}?",
            ]
        )
        calls = [{"city": city}]
        results = [{"city": city, "temperature": degrees, "sky": sky}]
        final = f"It is {sky} in {city}, with {degrees} degrees"
        if self.chance.random() < 0.15:
            other = self.pick(self.facts.cities)["name"]
            question = f"What is the weather in {city} and in {other}?"
            calls.append({"city": other})
            degrees = self.chance.randint(-5, 35)
            sky = self.pick(["sunny", "cloudy", "rainy", "windy"])
            results.append({"city": other, "temperature": degrees, "sky": sky})
            final += f", and {sky} in {other}, with {degrees} degrees"
        return question, calls, results, final + "."

    def _get_time(self, city: str) -> tuple[str, list[Any], list[Any], str]:
        clock = f"{self.chance.randint(0, 23):02d}:{self.chance.randint(0, 59):02d}"
        question = self.pick(
            [
                f"What time is it in {city}?",
                f"Tell me the time in {city}.",
                f"Local time in {city}?",
            ]
        )
        result = {"city": city, "time": clock}
        return question, [{"city": city}], [result], f"It is {clock} in {city}."

    def _calculator(self, _city: str) -> tuple[str, list[Any], list[Any], str]:
        a, b = self.chance.randint(10, 999), self.chance.randint(10, 999)
        sign, word, value = self.pick(
            [("+", "plus", a + b), ("-", "minus", a - b), ("*", "times", a * b)]
        )
        question = self.pick(
            [
                f"What is {a} {word} {b}?",
                f"Calculate {a} {sign} {b}.",
                f"Work out {a} {sign} {b}.",
            ]
        )
        call = {"expression": f"{a} {sign} {b}"}
        return question, [call], [{"result": value}], f"{a} {word} {b} is {value}."

    def _set_timer(self, _city: str) -> tuple[str, list[Any], list[Any], str]:
        minutes = self.chance.randint(1, 90)
        question = self.pick(
            [
                f"Set a timer for {minutes} minutes.",
                f"Start a timer of {minutes} minutes, please.",
                f"Wake me in {minutes} minutes.",
            ]
        )
        final = f"The timer is set for {minutes} minutes."
        return question, [{"minutes": minutes}], [{"ok": True}], final

    def _search_books(self, _city: str) -> tuple[str, list[Any], list[Any], str]:
        topic, count = self.pick(TOPICS), self.chance.randint(1, 9)
        question = self.pick([f"Find books about {topic}.", f"Do you have any books on {topic}?"])
        call: dict[str, Any] = {"query": topic}
        if self.chance.random() < 0.4:
            question = f"Find {count} books about {topic}."
            call["limit"] = count
        final = f"I found {count} book{'s' if count > 1 else ''} about {topic}."
        return question, [call], [{"count": count}], final

    def _send_message(self, _city: str) -> tuple[str, list[Any], list[Any], str]:
        name, phrase = self.pick(NAMES), self.pick(PHRASES)
        question = self.pick(
            [
                f"Send {name} the message: {phrase}",
                f"Tell {name} that {phrase}.",
                f'Message {name} "{phrase}".',
            ]
        )
        call = {"to": name, "text": phrase}
        return question, [call], [{"ok": True}], f"I sent the message to {name}."

    def _translate(self, _city: str) -> tuple[str, list[Any], list[Any], str]:
        phrase, language = self.pick(PHRASES), self.pick(LANGUAGES)
        question = self.pick(
            [f'Translate "{phrase}" into {language}.', f'How do you say "{phrase}" in {language}?']
        )
        call, result = {"text": phrase, "language": language}, {"ok": True, "text": "..."}
        return question, [call], [result], f"Here is the {language} translation."

    def _lookup_word(self, _city: str) -> tuple[str, list[Any], list[Any], str]:
        word = self.pick(self.facts.words)
        question = self.pick([f"Look up the word {word}.", f"Find {word} in the dictionary."])
        meaning = self.facts.glosses[word]
        final = f"{_a(word).capitalize()} is {meaning}."
        return question, [{"word": word}], [{"word": word, "meaning": meaning}], final

    def _turn_light(self, _city: str) -> tuple[str, list[Any], list[Any], str]:
        room, on = self.pick(ROOMS), self.chance.random() < 0.5
        state = "on" if on else "off"
        question = self.pick(
            [f"Turn {state} the light in the {room}.", f"Switch the {room} light {state}."]
        )
        final = f"The {room} light is {state}."
        return question, [{"room": room, "on": on}], [{"ok": True}], final


def _refuse(message: str) -> None:
    raise ValueError(message)
