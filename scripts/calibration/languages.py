"""Sentences in many languages, from patterns whose slots are filled by a generator of random numbers.

A pattern is a text with {a} (who), {b} (does what), {c} (where), {d} (when), {n} (a number). Every language has its own
words and its own patterns (languages.json), so that their orders are the language's.
"""

import json
import os

with open(os.path.join(os.path.dirname(os.path.abspath(__file__)), "languages.json"), encoding="utf-8") as f:
    LANGUAGES = json.load(f)


def _fill(rng, words, pattern):
    def pick(slot):
        return rng.choice(words[slot]).replace(
            "{n}", str(rng.choice([2, 3, 5, 7, 9, 12, 15, 20, 24, 30, 48, 60, 100]))
        )

    out = pattern
    for name in ("a2", "b2", "c2", "d2", "a", "b", "c", "d"):
        value = pick(name[0])
        out = out.replace("{" + name + "}", value)
        first = value[:1].upper() + value[1:]
        out = out.replace("{" + name[0].upper() + name[1:] + "}", first)
    return out.replace("{n}", str(rng.randint(2, 900)))


def paragraph(rng, language):
    words = LANGUAGES[language]
    patterns = words["p"]
    joined = "" if language in ("zh", "ja") else " "
    return joined.join(_fill(rng, words, rng.choice(patterns)) for _ in range(rng.randint(3, 8)))
