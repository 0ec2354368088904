"""Text encoders and the pair of encoders: what they compute, that loading rebuilds them, what they refuse."""

import csv
import math
import sys
import types
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from nonneg import backbones, encoder, files, maps, names
from nonneg.encoder import Encoder
from nonneg.errors import BadInput
from nonneg.multimodal import encoder as pair_encoder
from nonneg.multimodal import texts
from nonneg.multimodal.encoder import PairEncoder, TextEncoder

SAID = ["a red cat", "a blue cat", "the red dog sat", "dog", "three blue cats and a dog", "a red cat again"]


def pair(text: torch.nn.Module, *, map=maps.rep_relu, temperature: float | None = 0.07, seed: int = 0) -> PairEncoder:
    torch.manual_seed(seed)
    image = Encoder(lambda c: backbones.small_net(c, width=4), projector=(16, 8), map=map, channels=1)
    image.about["backbone"] = "small_net:width=4"
    return PairEncoder(image, TextEncoder(text, projector=(16, 8), map=map), temperature=temperature)


# What text encoders compute


@pytest.mark.parametrize("make", [texts.bag, texts.transformer])
def test_what_fills_a_row_up_changes_nothing(make) -> None:
    """A text's features do not depend on how long rows are, nor on the other texts of its batch."""
    torch.manual_seed(0)
    module = make(SAID, width=16).eval()
    rows, cut = module.read(SAID)
    whole = module(rows)
    assert cut == 0 and whole.shape == (len(SAID), 16) and module.dim == 16
    longest = int((rows != 0).sum(1).max())
    for i in range(len(SAID)):
        torch.testing.assert_close(module(rows[i : i + 1]), whole[i : i + 1], rtol=1e-5, atol=1e-5)
    if make is texts.bag:
        torch.testing.assert_close(module(rows[:, :longest]), whole)


def test_a_bag_is_the_scaled_sum_of_its_embeddings_in_any_order() -> None:
    module = texts.bag(SAID, width=8)
    rows, _ = module.read(["red dog", "dog red"])  # pyright: ignore[reportCallIssue]
    weight = module.embedding.weight  # pyright: ignore[reportAttributeAccessIssue]
    tokens = [t for t in rows[0].tolist() if t]
    summed = sum(weight[t] for t in tokens) / math.sqrt(len(tokens))
    expected = (summed - summed.mean()) / (summed.var(unbiased=False) + 1e-5).sqrt()
    torch.testing.assert_close(module(rows)[0], expected, rtol=1e-5, atol=1e-5)
    torch.testing.assert_close(module(rows)[0], module(rows)[1], rtol=1e-5, atol=1e-5)


def test_the_gradient_of_embeddings_is_torchs() -> None:
    module: Any = texts.bag(SAID, width=8)
    rows, _ = module.read(SAID)
    weight = module.embedding.weight.detach().clone().requires_grad_()
    target = torch.randn(*rows.shape, 8, generator=torch.Generator().manual_seed(0))
    (module.look_up(rows) * target).sum().backward()
    (torch.nn.functional.embedding(rows, weight) * target).sum().backward()
    torch.testing.assert_close(module.embedding.weight.grad, weight.grad)


def test_a_transformer_knows_the_order() -> None:
    torch.manual_seed(0)
    module = texts.transformer(SAID, width=8, heads=2, layers=1)
    a, b = module(module.read(["red dog", "dog red"])[0])  # pyright: ignore[reportCallIssue]
    assert not torch.allclose(a, b, atol=1e-4)


def test_a_transformer_is_attention_by_loops() -> None:
    """One block, one text, by the definition: softmax over the tokens that are there."""
    torch.manual_seed(0)
    module = texts.transformer(SAID, width=6, heads=2, layers=1, length=12)
    rows, _ = module.read(["a red dog"])  # pyright: ignore[reportCallIssue]
    n = int((rows[0] != 0).sum())
    block = module.blocks[0]  # pyright: ignore
    x = module.embedding.weight[rows[0, :n]] + module.position[:n]  # pyright: ignore
    qkv = block.qkv(block.norm1(x))
    heads = []
    for h in range(2):
        q, k, v = (qkv[:, part * 6 + h * 3 : part * 6 + h * 3 + 3] for part in range(3))
        heads.append(torch.stack([torch.softmax(k @ q[i] / math.sqrt(3), 0) @ v for i in range(n)]))
    x = x + block.out(torch.cat(heads, 1))
    x = x + block.mlp(block.norm2(x))
    torch.testing.assert_close(module(rows)[0], module.norm(x).mean(0), rtol=1e-4, atol=1e-5)  # pyright: ignore


def test_a_text_that_is_too_long_is_cut_and_counted() -> None:
    module = texts.bag(SAID, length=3)
    rows, cut = module.read(["dog", "three blue cats and a dog"])  # pyright: ignore[reportCallIssue]
    assert rows.shape == (2, 3) and cut == 1


# Frozen embeddings


class Stub:
    """A sentence model: the lengths of a text's words, up to four of them."""

    max_seq_length = 4

    def __init__(self, name: str, device: str) -> None:
        assert device == "cpu"
        if name == "missing":
            raise OSError("missing is not a folder\nand not a model")

    def tokenizer(self, said: list[str]) -> dict[str, list[list[int]]]:
        return {"input_ids": [[len(word) for word in text.split()] for text in said]}

    def encode(self, said: list[str], **_: object) -> np.ndarray:
        return np.array([[*map(len, text.split()), 0, 0, 0, 0][:4] for text in said], dtype=np.float32)


def test_sentence_embeddings_are_read_once_and_stay(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setitem(sys.modules, "sentence_transformers", types.SimpleNamespace(SentenceTransformer=Stub))
    module = texts.sentences(SAID, model="stub")
    rows, cut = module.read(SAID)  # pyright: ignore[reportCallIssue]
    assert rows.shape == (6, 4) and cut == 1 and rows[3].tolist() == [3, 0, 0, 0] and not list(module.parameters())
    torch.testing.assert_close(module(rows).norm(dim=1), torch.full((6,), 2.0))
    pair_encoder.save(pair(module), tmp_path)
    again = pair_encoder.load(tmp_path)
    torch.testing.assert_close(again.text(again.text.read(SAID)[0]), pair(module).text(rows))
    with pytest.raises(BadInput, match=r"cannot load 'missing' \(missing is not a folder\)"):
        texts.sentences(SAID, model="missing")


def test_sentence_embeddings_without_the_package_say_how_to_get_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "sentence_transformers", None)
    with pytest.raises(BadInput, match=r"needs the sentence-transformers package .*pip install 'nonneg\[text\]'"):
        texts.sentences(SAID)


def embeddings(folder: Path, values: np.ndarray, said: list[str] = SAID) -> tuple[str, str]:
    with (folder / "c.csv").open("w", newline="") as f:
        csv.writer(f).writerows([("id", "caption"), *((str(i), text) for i, text in enumerate(said))])
    np.save(folder / "e.npy", values)
    return str(folder / "e.npy"), str(folder / "c.csv")


def test_embeddings_of_ones_own_are_found_by_their_text(tmp_path: Path) -> None:
    values = np.random.default_rng(0).normal(size=(6, 5))
    path, of = embeddings(tmp_path, values)
    module = texts.vectors(SAID, path=path, of=of)
    rows, cut = module.read([SAID[4], SAID[1]])  # pyright: ignore[reportCallIssue]
    np.testing.assert_allclose(rows.numpy(), values[[4, 1]].astype(np.float32))
    assert cut == 0 and module.dim == 5
    pair_encoder.save(pair(module), tmp_path / "run")
    again = pair_encoder.load(tmp_path / "run")
    torch.testing.assert_close(again.text.read([SAID[4], SAID[1]])[0], rows)
    with pytest.raises(BadInput, match="has no embedding of 'a green cat'"):
        module.read(["a green cat"])  # pyright: ignore[reportCallIssue]
    embeddings(tmp_path, np.ones((6, 7)))
    with pytest.raises(BadInput, match=r"e\.npy holds embeddings of 7 numbers, not 5; put back"):
        pair_encoder.load(tmp_path / "run").text.read(SAID)


def test_embeddings_that_do_not_fit_say_why(tmp_path: Path) -> None:
    good = np.ones((6, 5))
    for values, message in (
        (good[:4], "has 4 rows for the 6 captions"),
        (good[0], "one array of numbers"),
        (np.array([["a"] * 5] * 6), "one array of numbers"),
        (np.where(np.eye(6, 5) > 0, np.nan, 1), "NaN or infinite values in row 0"),
        (np.eye(6, 5), "nothing but zeros in row 5; make the embeddings again"),
    ):
        path, of = embeddings(tmp_path, values)
        with pytest.raises(BadInput, match=message):
            texts.vectors(SAID, path=path, of=of)
    twice = ["a cat", "a dog", "a cat"]
    path, of = embeddings(tmp_path, np.eye(3, 5), twice)
    with pytest.raises(BadInput, match=r"different rows, 0 and 2, for one caption, 'a cat'; are they in the order"):
        texts.vectors(twice, path=path, of=of)
    path, of = embeddings(tmp_path, np.eye(3, 5)[[0, 1, 0]], twice)
    assert texts.vectors(twice, path=path, of=of).dim == 5
    path, of = embeddings(tmp_path, good)
    with pytest.raises(BadInput, match=r"does not exist; give a \.npy"):
        texts.vectors(SAID, path="none.npy", of=of)
    Path(path).write_bytes(b"nonsense")
    with pytest.raises(BadInput, match=r"is not a \.npy file of numbers"):
        texts.vectors(SAID, path=path, of=of)


# The pair


def test_widths_that_differ_are_refused() -> None:
    image = Encoder(backbones.small_net, projector=(16, 8), channels=1)
    text = TextEncoder(texts.bag(SAID, width=8), projector=(16, 4))
    with pytest.raises(BadInput, match="gives 8 features and the text encoder 4, but they share one space"):
        PairEncoder(image, text)


def test_both_sides_are_non_negative_with_exact_zeros_and_signed_without_the_map() -> None:
    module = texts.bag(SAID, width=8)
    rows, _ = module.read(SAID)  # pyright: ignore[reportCallIssue]
    images = torch.rand(6, 1, 16, 16)
    for z in pair(module)(images, rows):
        assert z.shape == (6, 8) and (z >= 0).all() and (z == 0).any()
    assert all((z < 0).any() for z in pair(module, map=maps.identity)(images, rows))


def test_the_temperature_is_learned_in_bounds_and_not_decayed() -> None:
    model = pair(texts.bag(SAID, width=8), temperature=0.07)
    assert model.temperature().item() == pytest.approx(0.07)
    every, alone = model.groups()
    assert alone == {"params": [model.log_scale], "weight_decay": 0.0}
    assert {id(p) for p in every["params"]} | {id(model.log_scale)} == {id(p) for p in model.parameters()}
    for value, kept in ((9.0, 0.01), (-3.0, 1.0), (2.0, math.exp(-2))):
        model.log_scale.data.fill_(value)  # pyright: ignore[reportOptionalMemberAccess]
        model.keep_in_bounds()
        assert model.temperature().item() == pytest.approx(kept)
    bare = pair(texts.bag(SAID, width=8), temperature=None)
    bare.keep_in_bounds()
    assert bare.log_scale is None and len(bare.groups()) == 1 and "log_scale" not in bare.state_dict()
    for bad in (0.0, 0.001, 2.0):
        with pytest.raises(BadInput, match=r"begins between 0\.01 and 1"):
            pair(texts.bag(SAID, width=8), temperature=bad)


@pytest.mark.parametrize("make", [texts.bag, texts.transformer])
@pytest.mark.parametrize("temperature", [None, 0.1])
def test_a_saved_pair_is_the_same_when_loaded(tmp_path: Path, make, temperature: float | None) -> None:
    model = pair(make(SAID, width=16), temperature=temperature).eval()
    pair_encoder.save(model, tmp_path)
    again = pair_encoder.load(tmp_path)
    rows, _ = again.text.read(SAID)
    assert rows.equal(model.text.read(SAID)[0])
    images = torch.rand(2, 1, 16, 16)
    for new, old in zip(again(images, rows), model(images, rows), strict=True):
        assert new.equal(old)
    assert again.state_dict().keys() == model.state_dict().keys() and not again.training
    assert encoder.load(tmp_path)(images).equal(model.image(images))  # the image side is an ordinary encoder


def test_damaged_files_say_so(tmp_path: Path) -> None:
    pair_encoder.save(pair(texts.bag(SAID, width=8)), tmp_path)
    about = files.read_json(tmp_path / "text.json")
    for change, message in (
        ({"backbone": {"kind": "oracle"}}, "does not describe a text encoder"),
        ({"backbone": {**about["backbone"], "heads": 3}}, "damaged"),
        ({"backbone": {**about["backbone"], "tokenizer": 3}}, "does not describe a tokenizer"),
        ({"projector": [16, 9]}, "does not fit"),
        ({"map": "os.system"}, "unknown map"),
    ):
        files.write_json(tmp_path / "text.json", {**about, **change})
        with pytest.raises(BadInput, match=message):
            pair_encoder.load(tmp_path)
    files.write_json(tmp_path / "text.json", [])
    with pytest.raises(BadInput, match="does not describe a text encoder"):
        pair_encoder.load(tmp_path)


def test_bad_knobs_are_refused() -> None:
    with pytest.raises(BadInput, match="heads that divide the width"):
        texts.transformer(SAID, width=10, heads=4)
    with pytest.raises(BadInput, match="width is 0"):
        texts.bag(SAID, width=0)


def test_the_command_line_offers_these_encoders() -> None:
    role = names.Role("text encoder", texts, ("captions",))
    assert set(role.functions()) == {"bag", "transformer", "sentences", "vectors"}
    assert names.find("sentences:my/folder", role).keywords == {"model": "my/folder"}  # pyright: ignore
    with pytest.raises(BadInput, match="needs of"):
        names.find("vectors:e.npy", role)
