"""Tokenizers of other kinds, read by the package `tokenizers`, write the same texts."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from edgeopt.errors import InvalidFileError, MissingDependencyError
from edgeopt.recipes.texts.byte_pairs import BytePairs
from edgeopt.recipes.texts.tokens import PackageTokens, read_tokens
from edgeopt.runtime.decoding.pieces import Pieces
from edgeopt.system.declared import optional

package = pytest.importorskip("tokenizers", reason="tokenizers is not installed")

SHIPPED = Path(__file__).parents[2] / "models" / "tiny_lm" / "tokenizer.json"
TEXTS = ("import os\n\n", "héllo wörld 👩‍🚀", "a  b 123 'll", "x = {'y': 1}\n\treturn x\n")


@pytest.fixture(scope="module")
def llama3(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Bytes as letters, words cut by a pattern of its own."""
    from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers, trainers

    made = Tokenizer(models.BPE())
    pattern = Regex(r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s+")
    made.pre_tokenizer = pre_tokenizers.Sequence(
        [pre_tokenizers.Split(pattern, "isolated"), pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)]
    )
    made.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=400,
        special_tokens=["<|end|>"],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    made.train_from_iterator([Path(__file__).read_text("utf-8")], trainer)
    file = tmp_path_factory.mktemp("llama3") / "tokenizer.json"
    made.save(str(file))
    return file


@pytest.fixture(scope="module")
def sentencepiece(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Spaces as letters of their own, and bytes where a letter is not known."""
    from tokenizers import Tokenizer, models, normalizers, trainers

    made = Tokenizer(models.BPE(byte_fallback=True, unk_token="<unk>"))
    made.normalizer = normalizers.Replace(" ", "\u2581")
    bytes_of = [f"<0x{i:02X}>" for i in range(256)]
    trainer = trainers.BpeTrainer(vocab_size=700, special_tokens=["<unk>", "<s>", *bytes_of], show_progress=False)
    made.train_from_iterator([Path(__file__).read_text("utf-8")], trainer)
    values = json.loads(made.to_str())
    values["added_tokens"] = [one for one in values["added_tokens"] if one["content"] in ("<unk>", "<s>")]
    file = tmp_path_factory.mktemp("sentencepiece") / "tokenizer.json"
    file.write_text(json.dumps(values), "utf-8")
    return file


@pytest.mark.parametrize("kind", ["llama3", "sentencepiece"])
@pytest.mark.parametrize("text", TEXTS)
def test_a_foreign_tokenizer_writes_what_it_read(kind, text, request):
    file = request.getfixturevalue(kind)
    tokens = read_tokens(file)
    assert isinstance(tokens, PackageTokens)
    ids = tokens.encode(text)
    assert ids == package.Tokenizer.from_file(str(file)).encode(text, add_special_tokens=False).ids
    assert tokens.decode(ids) == text
    pieces = Pieces(tokens)
    assert "".join([*(pieces.add(one) for one in ids), pieces.end()]) == text


@pytest.mark.parametrize("words", ["digits", "gpt-2"])
def test_a_table_without_some_bytes_writes_the_others_as_text(words, tmp_path):
    """SmolLM2's lacks 21 bytes that its texts never had."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

    made, level = Tokenizer(models.BPE()), pre_tokenizers.ByteLevel(add_prefix_space=False)
    steps = [pre_tokenizers.Digits(individual_digits=True), level]
    made.pre_tokenizer = level if words == "gpt-2" else pre_tokenizers.Sequence(steps)
    made.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(vocab_size=300, special_tokens=["<|end|>"], show_progress=False)
    made.train_from_iterator(["".join(map(chr, range(32, 127))), *TEXTS], trainer)
    file = tmp_path / "tokenizer.json"
    made.save(str(file))
    tokens = read_tokens(file)
    assert isinstance(tokens, BytePairs if words == "gpt-2" else PackageTokens)
    for text in TEXTS:
        assert tokens.decode(tokens.encode(text)) == text
    for text in ("über", "ab\x01ba", "a ☃ b"):
        assert tokens.encode(text) == made.encode(text, add_special_tokens=False).ids
    assert tokens.decode(tokens.encode("ab\x01ba")) == "abba"


def test_a_vocabulary_with_the_letters_of_bytes_may_mean_letters(sentencepiece, tmp_path):
    """A vocabulary of many languages has all of Latin."""
    values = json.loads(sentencepiece.read_text("utf-8"))
    known = values["model"]["vocab"]
    letters = (*map(chr, range(161, 324)),)
    known |= {letter: len(known) + i for i, letter in enumerate(letters) if letter not in known}
    file = tmp_path / "tokenizer.json"
    file.write_text(json.dumps(values), "utf-8")
    tokens = read_tokens(file)
    assert tokens.decode(tokens.encode("a Ġ word ē")) == "a Ġ word ē"


@pytest.mark.parametrize("reads", [BytePairs, PackageTokens])
def test_a_token_of_other_letters_writes_itself(reads, tmp_path):
    values = json.loads(SHIPPED.read_text("utf-8"))
    values["model"]["vocab"] |= {"中": 5000, "Ġ中": 5001, "Ġé": 5002}
    file = tmp_path / "tokenizer.json"
    file.write_text(json.dumps(values), "utf-8")
    tokens = BytePairs(file, values) if reads is BytePairs else PackageTokens(file)
    assert [tokens.token_bytes(5000 + i) for i in range(3)] == ["中".encode(), "Ġ中".encode(), b" \xe9"]


@pytest.mark.parametrize("is_inside", [False, True])
def test_a_normalizer_may_turn_bytes_into_letters(is_inside, tmp_path):
    values = json.loads(SHIPPED.read_text("utf-8"))
    level = {"type": "ByteLevel"}
    values |= {"normalizer": {"type": "Sequence", "normalizers": [level]} if is_inside else level}
    values |= {"pre_tokenizer": None, "decoder": None}
    file = tmp_path / "tokenizer.json"
    file.write_text(json.dumps(values), "utf-8")
    tokens = PackageTokens(file)
    assert tokens.decode(tokens.encode("a b é")) == "a b é"


def test_special_tokens_write_nothing_and_are_text_unless_asked_for(llama3):
    tokens = read_tokens(llama3)
    end = tokens.special["<|end|>"]
    assert tokens.token_bytes(end) == b""
    assert end not in tokens.encode("a<|end|>b")
    assert end in tokens.encode("a<|end|>b", reads_special=True)


def test_the_size_is_that_of_what_a_text_can_become(tmp_path):
    values = json.loads(SHIPPED.read_text("utf-8"))
    values["added_tokens"].append({**values["added_tokens"][0], "content": "<unk>", "id": 5000})
    file = tmp_path / "tokenizer.json"
    file.write_text(json.dumps(values), "utf-8")
    tokens = read_tokens(file)
    assert isinstance(tokens, BytePairs)
    assert tokens.size == 1024


def test_the_shipped_one_needs_no_package(monkeypatch):
    monkeypatch.setattr(optional, "import_module", lambda name: pytest.fail(name))
    assert read_tokens(SHIPPED).encode("import os")


def test_without_the_package_one_line_says_what_to_install(monkeypatch, llama3):
    def absent(name: str) -> None:
        raise ModuleNotFoundError(f"No module named {name!r}", name=name)

    monkeypatch.setattr(optional, "import_module", absent)
    with pytest.raises(MissingDependencyError) as failed:
        read_tokens(llama3)
    assert "edgeopt[text]" in failed.value.remedy


def test_what_the_package_does_not_read_is_one_line(tmp_path):
    file = tmp_path / "tokenizer.json"
    file.write_text('{"model": {"type": "Unigram"}}', "utf-8")
    with pytest.raises(InvalidFileError, match="is no tokenizer"):
        read_tokens(file)
