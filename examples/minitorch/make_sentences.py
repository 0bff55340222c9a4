"""Write sentences.txt: short sentences about everyday things, labelled as praise or complaint.

    python examples/minitorch/make_sentences.py

They come from templates and word lists, so the text is free of anybody's rights and always the same. "Not" turns a
sentence round: single words do not decide, words beside each other do.
"""

import random
from pathlib import Path

THINGS = ("soup", "bread", "film", "song", "book", "walk", "garden", "lamp", "chair", "train", "hotel", "map", "lesson", "game")
GOOD = ("good", "lovely", "pleasant", "clear", "clever", "charming", "useful", "bright")
BAD = ("bad", "dull", "noisy", "boring", "broken", "ugly", "confusing", "slow")
TEMPLATES = (
    "the {thing} was {word}",
    "we found the {thing} {word}",
    "a {word} {thing} , said everyone",
    "my sister calls this {thing} {word}",
    "what a {word} {thing} that was",
    "yesterday the {thing} seemed {word} to me",
)
TURNED = (
    "the {thing} was not {word}",
    "this is not a {word} {thing}",
    "nobody called the {thing} {word}",
    "the {thing} was never {word} , not even once",
)


def sentences(count=400):
    """So many different lines, half of each label."""
    chance = random.Random(5)
    made = {"praise": set(), "complaint": set()}
    while any(len(lines) < count // 2 for lines in made.values()):
        good, turned = chance.random() < 0.5, chance.random() < 0.3
        template = chance.choice(TURNED if turned else TEMPLATES)
        sentence = template.format(thing=chance.choice(THINGS), word=chance.choice(GOOD if good else BAD))
        label = "praise" if good != turned else "complaint"
        if len(made[label]) < count // 2:
            made[label].add(sentence)
    return sorted(f"{label}\t{sentence}" for label, lines in made.items() for sentence in lines)


if __name__ == "__main__":
    Path(__file__).with_name("sentences.txt").write_text("\n".join(sentences()) + "\n", encoding="utf-8")
