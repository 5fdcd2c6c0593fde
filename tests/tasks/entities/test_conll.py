"""CoNLL files: what is read, how IOB1 becomes IOB2, and what is refused with file and line."""

from __future__ import annotations

from pathlib import Path

import pytest

from tasks.entities.task import read_conll, to_iob2
from tasks.errors import DataError
from tests.tasks.shared_data import shared_case, shared_data

TEXT = """-DOCSTART- -X- O O

EU NNP I-NP I-ORG
rejects VBZ I-VP O

-DOCSTART- -X- O O
Peter NNP I-NP I-PER
Blackburn NNP I-NP I-PER
"""


def write(folder: Path, text: str | bytes) -> Path:
    path = folder / "eng.train"
    path.write_bytes(text if isinstance(text, bytes) else text.encode())
    return path


@pytest.mark.parametrize(
    "change", [str, lambda t: t.replace("\n", "\r\n"), lambda t: t.replace(" ", "\t"), "\ufeff{}".format]
)
def test_sentences_words_and_tags(tmp_path: Path, change: object) -> None:
    assert callable(change)
    first, second = read_conll(write(tmp_path, change(TEXT)))
    assert first.words == ("EU", "rejects")
    assert first.tags == ("B-ORG", "O")
    assert second.words == ("Peter", "Blackburn")
    assert second.tags == ("B-PER", "I-PER")


@pytest.mark.parametrize(
    ("iob1", "iob2"),
    [
        ("I-PER I-PER O I-PER", "B-PER I-PER O B-PER"),
        ("I-PER I-ORG I-ORG", "B-PER B-ORG I-ORG"),
        ("I-LOC B-LOC I-LOC", "B-LOC B-LOC I-LOC"),  # two that touch
        ("B-LOC I-LOC B-LOC O", "B-LOC I-LOC B-LOC O"),  # IOB2 already
        ("O O", "O O"),
    ],
)
def test_iob1_becomes_iob2(iob1: str, iob2: str) -> None:
    assert to_iob2(iob1.split()) == tuple(iob2.split())
    assert to_iob2(iob2.split()) == tuple(iob2.split())


@pytest.mark.parametrize("word", ["10\u00a0000", "a\u2028b", "a\x85b", "a\u3000b", "a\x0cb"])
def test_a_word_may_hold_what_unicode_calls_a_space(tmp_path: Path, word: str) -> None:
    (sentence,) = read_conll(write(tmp_path, f"{word}\tO\nEU\tB-ORG\n"))
    assert sentence.words == (word, "EU")


REFUSALS = [
    (TEXT.replace("rejects VBZ I-VP O", "rejects VBZ"), r"eng\.train, line 4: 'rejects VBZ' has 2 column\(s\) where 4"),
    (
        TEXT + "New York NNP I-NP I-LOC\n",
        r"'New York NNP I-NP I-LOC' has 5 column\(s\) where 4 .*without a blank in it",
    ),
    ("word\n", r"line 1: 'word' has 1 column\(s\) where 2 are needed"),
    (TEXT.replace("I-ORG", "ORG"), r"line 3: tag 'ORG' is not O, B-<type> or I-<type>"),
    (TEXT.replace("I-ORG", "S-ORG"), "tag 'S-ORG' is not"),
    (TEXT.replace("I-ORG", "I-"), "tag 'I-' is not"),
    ("", "holds no sentence"),
    ("-DOCSTART- -X- O O\n\n", "holds no sentence"),
    ("Köln NNP I-NP I-LOC\n".encode("latin-1"), r"is not UTF-8 \(.* at byte 1\)"),
]


@pytest.mark.parametrize(("text", "message"), REFUSALS, ids=[message for _, message in REFUSALS])
def test_what_is_refused(tmp_path: Path, text: str | bytes, message: str) -> None:
    with pytest.raises(DataError, match=message):
        read_conll(write(tmp_path, text))


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"eng\.testa cannot be read"):
        read_conll(tmp_path / "eng.testa")


@pytest.mark.parametrize(
    ("name", "n_sentences", "n_words", "entities"),
    [
        # Tables 1 and 2 of the shared task's paper.
        ("eng.train", 14_041, 203_621, {"LOC": 7140, "MISC": 3438, "ORG": 6321, "PER": 6600}),
        ("eng.testa", 3_250, 51_362, {"LOC": 1837, "MISC": 922, "ORG": 1341, "PER": 1842}),
        ("eng.testb", 3_453, 46_435, {"LOC": 1668, "MISC": 702, "ORG": 1661, "PER": 1617}),
    ],
)
def test_counts_are_the_papers(name: str, n_sentences: int, n_words: int, entities: dict[str, int]) -> None:
    sentences = read_conll(shared_data("conll2003") / "conll2003" / name)
    assert len(sentences) == n_sentences
    assert sum(len(sentence.words) for sentence in sentences) == n_words
    begun = [tag[2:] for sentence in sentences for tag in sentence.tags if tag.startswith("B-")]
    assert {kind: begun.count(kind) for kind in sorted(set(begun))} == entities


def test_comments_before_sentences_are_not_words(tmp_path: Path) -> None:
    text = "# id 1\tdomain=en\n# 2 B-PER\nkoldo _ _ B-PER\n\n# text = a\n# _ _ O\nbilbao _ _ B-LOC\n"
    first, second = read_conll(write(tmp_path, "koldo _ _ B-PER\n\n" + text))[1:]
    assert (first.words, second.words) == (("koldo",), ("#", "bilbao"))
    with pytest.raises(DataError, match=r"line 2: .*# id 1.* tag 'id=1'|line 2: "):
        read_conll(write(tmp_path, "koldo B-PER\n# id=1\n"))


def test_a_tag_in_two_unicode_forms_is_one(tmp_path: Path) -> None:
    (sentence,) = read_conll(write(tmp_path, "a B-caf\u00e9\nb I-cafe\u0301\n"))
    assert sentence.tags == ("B-café", "I-café")


def test_a_real_file_with_comments() -> None:
    sentences = read_conll(shared_case("ner_comment_lines.txt"))
    assert {sentence.words for sentence in sentences} == {("koldo", "was", "in", "bilbao")}
