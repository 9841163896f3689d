"""Train the nets of tests/trained/moods.onnx, tagger.onnx and meanings.onnx: two layers of attention over 32 tokens.

Needs torch and tokenizers; some minutes on one core. `python benchmarks/trained/texts.py` writes the same weights
each time.
"""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path

import numpy as np
import torch
from torch import nn

sys.path.insert(0, str(Path(__file__).parents[2] / "tests" / "fixtures"))

from made_texts import MOODS, PIECES, TAGS, TOPICS, WORDS, moods, tagged, topics, write_tokenizer
from tokenizers import Tokenizer

OUT = Path(__file__).parents[2] / "tests" / "trained"
LENGTH, WIDTH, HEADS, LAYERS, BATCH, FIRST = 32, 32, 4, 2, 64, 1_000_000
TOKENS = 4 + len(WORDS) + len(PIECES)


class Layer(nn.Module):
    """Attention and two products, the norm behind each, as in BERT."""

    def __init__(self) -> None:
        super().__init__()
        self.query, self.key, self.value, self.out = (nn.Linear(WIDTH, WIDTH) for _ in range(4))
        self.wide, self.narrow = nn.Linear(WIDTH, 2 * WIDTH), nn.Linear(2 * WIDTH, WIDTH)
        self.first, self.second = nn.LayerNorm(WIDTH), nn.LayerNorm(WIDTH)

    def forward(self, x: torch.Tensor, hidden: torch.Tensor) -> torch.Tensor:
        """Return (texts, tokens, width) of the same; `hidden` is far below zero at tokens that are not there."""

        def split(one: torch.Tensor) -> torch.Tensor:
            return one.reshape(-1, LENGTH, HEADS, WIDTH // HEADS).transpose(1, 2)

        query, key, value = split(self.query(x)), split(self.key(x)), split(self.value(x))
        shares = (query @ key.transpose(2, 3) / (WIDTH // HEADS) ** 0.5 + hidden).softmax(dim=3)
        x = self.first(x + self.out((shares @ value).transpose(1, 2).reshape(-1, LENGTH, WIDTH)))
        return self.second(x + self.narrow(nn.functional.gelu(self.wide(x))))


class Net(nn.Module):
    """Tokens to scores: of each token, or of the first."""

    def __init__(self, classes: int, of_tokens: bool) -> None:
        super().__init__()
        self.words, self.places = nn.Embedding(TOKENS, WIDTH), nn.Parameter(torch.randn(LENGTH, WIDTH) * 0.05)
        self.layers, self.norm = nn.ModuleList(Layer() for _ in range(LAYERS)), nn.LayerNorm(WIDTH)
        self.head, self.of_tokens = nn.Linear(WIDTH, classes), of_tokens

    def forward(self, input_ids: torch.Tensor, attention_mask: torch.Tensor) -> torch.Tensor:
        """Return (texts, classes), or (texts, tokens, classes), of (texts, tokens) numbers and mask."""
        x = self.norm(self.words(input_ids) + self.places)
        hidden = (1.0 - attention_mask.to(torch.float32))[:, None, None, :] * -1e4
        for layer in self.layers:
            x = layer(x, hidden)
        return self.head(x if self.of_tokens else x[:, 0])


class Meaning(nn.Module):
    """Scores of a vector by its cosines to one of each topic, while the net of vectors is trained."""

    def __init__(self, net: Net) -> None:
        super().__init__()
        self.net, self.centres = net, nn.Parameter(torch.randn(len(TOPICS), WIDTH))

    def forward(self, input_ids: torch.Tensor, attention_mask: torch.Tensor) -> torch.Tensor:
        """Return (texts, topics)."""
        vectors = nn.functional.normalize(self.net(input_ids, attention_mask), dim=1)
        return 16 * vectors @ nn.functional.normalize(self.centres, dim=1).T


def mood_batch(tokenizer: Tokenizer, seed: int) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Return numbers, mask and mood of some texts."""
    return labelled(tokenizer, moods(BATCH, seed))


def topic_batch(tokenizer: Tokenizer, seed: int) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Return numbers, mask and topic of some texts."""
    return labelled(tokenizer, topics(BATCH, seed))


def labelled(tokenizer: Tokenizer, made: list[tuple[str, int]]) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Return numbers, mask and label of texts."""
    found = tokenizer.encode_batch([text for text, _ in made])
    ids, mask = (torch.tensor(np.array(one)) for one in ([e.ids for e in found], [e.attention_mask for e in found]))
    return ids, mask, torch.tensor([label for _, label in made])


def tag_batch(tokenizer: Tokenizer, seed: int) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Return numbers, mask and tags; -100 where a token is not the first of its word."""
    ids, masks, truth = [], [], []
    for one in tagged(BATCH, seed):
        found = tokenizer.encode(list(one.words), is_pretokenized=True)
        tags, last = [], None
        for word in found.word_ids:
            tags.append(-100 if word is None or word == last else TAGS.index(one.tags[word]))
            last = word
        ids.append(found.ids)
        masks.append(found.attention_mask)
        truth.append(tags)
    return torch.tensor(ids), torch.tensor(masks), torch.tensor(truth)


def train(name: str, net: Net | Meaning, batch_of, steps: int) -> None:
    """Train a net and write it."""
    with tempfile.TemporaryDirectory() as folder:
        tokenizer = Tokenizer.from_file(str(write_tokenizer(Path(folder) / "tokenizer.json")))
    tokenizer.enable_padding(length=LENGTH, pad_id=0, pad_token="[PAD]")
    tokenizer.enable_truncation(LENGTH)
    optimizer = torch.optim.AdamW(net.parameters(), 1e-3, weight_decay=0.01)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, 4e-3, steps)
    for step in range(steps):
        ids, mask, truth = batch_of(tokenizer, FIRST + step)
        scores = net(ids, mask)
        loss = nn.functional.cross_entropy(scores.reshape(-1, scores.shape[-1]), truth.reshape(-1))
        optimizer.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(net.parameters(), 1.0)
        optimizer.step()
        schedule.step()
        if step % 100 == 99:
            right = (scores.argmax(-1) == truth)[truth >= 0].float().mean()
            print(f"{name} {step + 1}: {float(loss.detach()):.4f}, {float(right):.3f} right", flush=True)
    net.eval()
    ids, mask, _ = batch_of(tokenizer, 0)
    file = OUT / f"{name}.onnx"
    torch.onnx.export(
        net.net if isinstance(net, Meaning) else net,
        (ids[:1], mask[:1]),
        str(file),
        input_names=["input_ids", "attention_mask"],
        output_names=["sentence_embedding" if isinstance(net, Meaning) else "logits"],
        opset_version=17,
        dynamo=False,
    )
    print(f"{file}: {file.stat().st_size} bytes")


def main() -> None:
    torch.set_num_threads(1)
    wanted = (("moods", len(MOODS), mood_batch, 800), ("tagger", len(TAGS), tag_batch, 400))
    for name, classes, batch_of, steps in wanted:
        torch.manual_seed(0)
        train(name, Net(classes, name == "tagger"), batch_of, steps)
    torch.manual_seed(0)
    train("meanings", Meaning(Net(WIDTH, of_tokens=False)), topic_batch, 300)


if __name__ == "__main__":
    main()
