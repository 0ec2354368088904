"""Subword tokens: byte pairs merged in the order of their frequency, learned from captions; no text is ever unknown.

A text is lower-cased and its spaces made single; a word keeps the space before it, punctuation stands alone, and both
are UTF-8 bytes to begin with. Token 0 fills rows up, tokens 1 to 256 are the bytes, the others are merged pairs.
"""

import heapq
import re
import unicodedata
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any

import torch
from torch import Tensor

from nonneg.errors import BadInput

PAD, BYTES = 0, 256
EMOJI = {0x20E3, *range(0xFE00, 0xFE10)}  # marks that make emoji of digits and signs
MARKS = "".join(  # on letters, as the vowels of Hindi and Thai are, and the points of Hebrew and Arabic
    chr(c) for c in range(0x300, 0x1F000) if unicodedata.category(chr(c))[0] == "M" and c not in EMOJI
)
WORD = rf"\w+(?:(?![ -~])[{MARKS}]+\w*)*"  # most words end before ASCII, which is quicker to see than all the marks
PIECE = re.compile(rf" ?{WORD}| ?[^\w\s]+")
Pair = tuple[int, int]


def normalise(text: str) -> str:
    """What is read of a text: composed characters, lower case, single spaces, none at the ends."""
    return " ".join(unicodedata.normalize("NFC", text).lower().split())


def words(text: str) -> list[str]:
    """The words of a text, as people see them: no punctuation."""
    return re.findall(WORD, normalise(text))


def _pieces(text: str) -> list[str]:
    return PIECE.findall(f" {normalise(text)}")


@dataclass(frozen=True)
class Tokenizer:
    """Texts to rows of `length` tokens and back; `merges[i]` is the pair that token 257 + i stands for."""

    merges: tuple[Pair, ...]
    length: int
    _rank: dict[Pair, int] = field(init=False, repr=False, compare=False)
    _known: dict[str, list[int]] = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        if not self.length >= 1:
            raise BadInput(f"the tokenizer's length is {self.length}; it must be at least 1 token")
        for i, pair in enumerate(self.merges):
            if len(pair) != 2 or not all(isinstance(t, int) and 1 <= t <= BYTES + i for t in pair):
                raise BadInput(f"the tokenizer's merge {i} is {pair}; it must be two tokens that come before it")
        object.__setattr__(self, "_rank", {pair: i for i, pair in enumerate(self.merges)})
        object.__setattr__(self, "_known", {})

    def __len__(self) -> int:
        """How many tokens there are, the one that fills rows up included."""
        return 1 + BYTES + len(self.merges)

    def tokens(self, text: str) -> list[int]:
        """All tokens of a text, however long."""
        return [token for piece in _pieces(text) for token in self._of_piece(piece)]

    def _of_piece(self, piece: str) -> list[int]:
        if piece not in self._known:
            tokens = [1 + byte for byte in piece.encode()]
            while len(tokens) > 1:
                first = min(pairwise(tokens), key=lambda pair: self._rank.get(pair, len(self)))
                if first not in self._rank:
                    break
                tokens = _merged(tokens, first, 1 + BYTES + self._rank[first])
            self._known[piece] = tokens
        return self._known[piece]

    def encode(self, texts: Sequence[str]) -> tuple[Tensor, int]:
        """N x length tokens, each text from the left, and how many texts were longer and are cut."""
        rows, cut = torch.zeros(len(texts), self.length, dtype=torch.int64), 0
        for row, text in zip(rows, texts, strict=True):
            tokens = self.tokens(text)
            cut += len(tokens) > self.length
            row[: len(tokens)] = torch.tensor(tokens[: self.length], dtype=torch.int64)
        return rows, cut

    def decode(self, tokens: Iterable[int]) -> str:
        """The text of a row; bytes that are not whole characters (of a text that was cut) become U+FFFD."""
        return b"".join(self._bytes(token) for token in tokens if token != PAD).decode("utf-8", "replace").strip()

    def _bytes(self, token: int) -> bytes:
        if token <= BYTES:
            return bytes([token - 1])
        first, second = self.merges[token - BYTES - 1]
        return self._bytes(first) + self._bytes(second)

    def to_json(self) -> dict[str, Any]:
        return {"length": self.length, "merges": [list(pair) for pair in self.merges]}


def from_json(values: Any, where: str) -> Tokenizer:
    """The tokenizer that `to_json` described."""
    try:
        return Tokenizer(tuple((a, b) for a, b in values["merges"]), values["length"])
    except (KeyError, TypeError, ValueError) as error:
        raise BadInput(f"{where} is damaged: it does not describe a tokenizer ({error})") from None


def learn(texts: Iterable[str], *, size: int = 2048, length: int = 32) -> Tokenizer:
    """At most `size` tokens: again and again the most frequent pair of neighbours inside a word becomes one token.

    Of pairs equally frequent the one of smaller tokens goes first, so that the same texts, in whatever order, give the
    same tokens; a pair that occurs once is not merged.
    """
    if size < 1 + BYTES:
        raise BadInput(f"a vocabulary of {size} tokens has no room for the {BYTES} bytes; give {1 + BYTES} or more")
    pieces = Counter(piece for text in texts for piece in _pieces(text))
    spelled = [[1 + byte for byte in piece.encode()] for piece in pieces]
    often = list(pieces.values())
    counts: Counter[Pair] = Counter()
    inside: dict[Pair, set[int]] = {}  # the pieces that a pair occurs in, or did
    for i, tokens in enumerate(spelled):
        for pair in pairwise(tokens):
            counts[pair] += often[i]
            inside.setdefault(pair, set()).add(i)
    heap = [(-n, pair) for pair, n in counts.items()]
    heapq.heapify(heap)
    merges: list[Pair] = []
    while heap and 1 + BYTES + len(merges) < size:
        n, pair = heapq.heappop(heap)
        if counts[pair] != -n:  # its count has changed since, and it is in the heap with the new one too
            continue
        if -n < 2:
            break
        merges.append(pair)
        changed: set[Pair] = set()
        for i in inside.pop(pair):
            before = spelled[i]
            spelled[i] = after = _merged(before, pair, BYTES + len(merges))
            for sign, tokens in ((-1, before), (1, after)):
                for other in pairwise(tokens):
                    counts[other] += sign * often[i]
                    changed.add(other)
            for other in pairwise(after):
                inside.setdefault(other, set()).add(i)
        for other in changed:
            if counts[other] > 0:
                heapq.heappush(heap, (-counts[other], other))
    return Tokenizer(tuple(merges), length)


def _merged(tokens: list[int], pair: Pair, new: int) -> list[int]:
    """The tokens with every `pair`, from the left, replaced by `new`."""
    out: list[int] = []
    i = 0
    while i < len(tokens):
        if i + 1 < len(tokens) and (tokens[i], tokens[i + 1]) == pair:
            out.append(new)
            i += 2
        else:
            out.append(tokens[i])
            i += 1
    return out
