"""Images and captions: paired by id whatever the order, and nothing lost without being said."""

import csv
import io
import json
import tarfile
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from nonneg import data, pairs
from nonneg.data.folder import folder as folder_of_images
from nonneg.errors import BadInput
from nonneg.names import Role
from nonneg.pairs.captions import Caption, Places
from nonneg.pairs.dataset import Pairs, paired

COLOURS = {"red": (255, 0, 0), "green": (0, 255, 0), "blue": (0, 0, 255), "white": (255, 255, 255), "black": (0, 0, 0)}


def picture(path: Path, colour: tuple[int, int, int], size: int = 8) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.new("RGB", (size, size), colour).save(path)


@pytest.fixture
def photos(tmp_path: Path) -> Path:
    """Ten pictures, each of one colour, two of a colour; its name tells which."""
    for name, colour in COLOURS.items():
        for i in range(2):
            picture(tmp_path / "photos" / f"{name}-{i}.png", colour)
    return tmp_path / "photos"


def write_csv(path: Path, rows: list[tuple[str, ...]]) -> Path:
    with path.open("w", newline="", encoding="utf-8") as f:
        csv.writer(f).writerows(rows)
    return path


def write_jsonl(path: Path, rows: Sequence[object]) -> Path:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    return path


def all_captions(photos: Path) -> list[tuple[str, ...]]:
    return [("id", "caption"), *((p.name, f"a {p.stem.partition('-')[0]} square") for p in sorted(photos.iterdir()))]


def by_image(p: Pairs) -> dict[str, list[str]]:
    first, counts = p.first.tolist(), p.counts.tolist()
    return {name: p.captions[first[i] : first[i] + counts[i]] for i, name in enumerate(p.images.ids)}


def both(photos: Path, captions: Path, **more: object) -> dict[str, Pairs]:
    return {s: pairs.folder(split=s, root=photos, captions=captions, **more) for s in ("train", "test")}  # pyright: ignore


# Pairing


@pytest.mark.parametrize("kind", ["csv", "tsv", "jsonl"])
def test_pairs_are_made_by_id_never_by_order(photos: Path, tmp_path: Path, kind: str) -> None:
    rows = all_captions(photos)
    shuffled = [rows[0], *(rows[1:][i] for i in np.random.default_rng(0).permutation(len(rows) - 1))]
    path = tmp_path / f"captions.{kind}"
    if kind == "jsonl":
        write_jsonl(path, [{"file_name": name, "text": text} for name, text in shuffled[1:]])
    else:
        path.write_text("".join(("," if kind == "csv" else "\t").join(row) + "\n" for row in shuffled))
    found = both(photos, path)
    assert len(found["train"]) == 8 and len(found["test"]) == 2
    for p in found.values():
        for i, name in enumerate(p.images.ids):
            colour = name.partition("-")[0]
            assert by_image(p)[name] == [f"a {colour} square"]
            assert tuple(p.images.images[i, :, 0, 0].tolist()) == COLOURS[colour]
        assert p.skipped == []


def test_images_and_splits_are_those_of_the_folder_loader(photos: Path, tmp_path: Path) -> None:
    captions = write_csv(tmp_path / "c.csv", all_captions(photos))
    for split, mine in both(photos, captions, image_size=6).items():
        other = folder_of_images(split=split, root=photos, image_size=6)
        assert mine.images.ids == other.ids and torch.equal(torch.as_tensor(mine.images.images), other.images)  # pyright: ignore


def test_an_image_may_have_several_captions(photos: Path, tmp_path: Path) -> None:
    rows = [{"id": p.stem, "captions": [f"{p.stem} one", f"{p.stem} two"]} for p in sorted(photos.iterdir())]
    rows.append({"id": "red-0.png", "captions": "and three"})
    found = both(photos, write_jsonl(tmp_path / "c.jsonl", rows))
    texts = by_image(found["train"]) | by_image(found["test"])
    assert texts["red-0.png"] == ["red-0 one", "red-0 two", "and three"] and texts["blue-1.png"][1] == "blue-1 two"
    for p in found.values():
        assert p.owner.tolist() == [i for i, n in enumerate(p.counts.tolist()) for _ in range(n)]


@pytest.mark.parametrize("name", ["sub/deep/red.png", "sub/deep/red", "red.png", "red", "sub\\deep\\red.png", "./red"])
def test_an_id_is_a_path_or_a_file_name_with_or_without_its_ending(tmp_path: Path, name: str) -> None:
    for split, colour in (("train", "red"), ("test", "blue")):
        picture(tmp_path / "p" / split / "sub" / "deep" / f"{colour}.png", COLOURS[colour])
    wanted = name.replace("sub", "train/sub").replace("train/sub\\", "train\\sub\\")
    captions = write_csv(tmp_path / "c.csv", [("image", "text"), (wanted, "x"), ("blue", "y")])
    assert both(tmp_path / "p", captions)["train"].captions == ["x"]
    assert both(tmp_path / "p", captions)["test"].captions == ["y"]


@pytest.mark.parametrize("name", ["SUB/deep/Red.PNG", "RED", "ROOT/sub/deep/red.png", "ROOT/sub/deep/red"])
def test_an_id_may_be_an_absolute_path_or_in_other_letters(tmp_path: Path, name: str) -> None:
    root = tmp_path / "photos"
    picture(root / "sub/deep/red.png", (255, 0, 0))
    captions = write_csv(tmp_path / "c.csv", [("id", "caption"), (name.replace("ROOT", str(root)), "a red thing")])
    found = [p for split in ("train", "test") if (p := one_of(root, captions, split)) is not None]
    assert [p.captions for p in found] == [["a red thing"]]


def one_of(root: Path, captions: Path, split: str) -> Pairs | None:
    """The pairs of a split; None where it has none."""
    try:
        return pairs.folder(split=split, root=root, captions=captions)
    except BadInput as error:
        assert "have no pair of image and caption" in str(error)
        return None


def test_upper_and_lower_case_count_where_two_images_differ_in_nothing_else() -> None:
    places = Places(["a/cat.png", "a/CAT.png", "b/dog.png"], Path("photos"))
    found = [places.find(Caption("line", name, "")) for name in ("a/cat.png", "CAT", "DOG", "cow")]
    assert found == [0, 1, 2, None]
    with pytest.raises(BadInput, match=r"'a/Cat.png' fits 2 images \(a/cat.png and a/CAT.png\)"):
        places.find(Caption("line", "a/Cat.png", ""))


def test_numbers_are_ids_and_accents_are_compared_as_characters(tmp_path: Path) -> None:
    for name in ("7", "cafe\u0301"):  # the accent apart, as some systems write it
        for split in ("train", "test"):
            picture(tmp_path / "p" / split / f"{split}{name}.png", (1, 2, 3))
    rows = [{"id": f"{s}{name}", "caption": "x"} for s in ("train", "test") for name in ("7", "caf\u00e9")]
    assert len(both(tmp_path / "p", write_jsonl(tmp_path / "c.jsonl", rows))["train"]) == 2
    for split in ("train", "test"):
        picture(tmp_path / "q" / split / f"{3 if split == 'train' else 4}.png", (1, 2, 3))
    rows = [{"id": 3, "caption": "x"}, {"id": 4, "caption": "y"}]
    assert both(tmp_path / "q", write_jsonl(tmp_path / "d.jsonl", rows))["test"].captions == ["y"]


# What is left out is counted and listed


def test_what_cannot_be_paired_is_listed_and_counted(photos: Path) -> None:
    rows = all_captions(photos)
    lost = rows.pop(1)[0]
    rows += [("ghost.png", "a ghost"), ("red-0.png", "   "), ("red-0.png", "a red square"), ("spirit", "a spirit")]
    rows += [(" ", "nobody")]
    (photos / "notes.txt").write_text("not a picture")
    for p in both(photos, write_csv(photos / "captions.csv", rows)).values():
        lines = "\n".join(p.skipped)
        assert f"{lost}: no caption" in p.skipped and "notes.txt: not an image" in p.skipped
        assert "captions.csv line 11, id 'ghost.png': no image of that id" in lines
        assert "id 'red-0.png': empty caption" in lines and "id 'red-0.png': caption given twice" in lines
        assert "captions.csv line 15: names no image" in lines
        assert len(p.skipped) == 7 and "captions.csv: not an image" not in lines
        two = "7 inputs skipped: 2 x no image of that id (first: captions.csv line 11, id 'ghost.png'); "
        assert p.images.said_skipped().startswith(two) and p.images.said_skipped().endswith("; and other reasons")
        assert lost not in p.images.ids


def test_strict_refuses_what_would_be_left_out(photos: Path, tmp_path: Path) -> None:
    captions = write_csv(tmp_path / "c.csv", [*all_captions(photos), ("ghost", "a ghost")])
    with pytest.raises(BadInput, match=r"ghost.*no image of that id"):
        pairs.folder(root=photos, captions=captions, strict=True)


def test_an_image_that_cannot_be_read_is_listed(photos: Path, tmp_path: Path) -> None:
    captions = write_csv(tmp_path / "c.csv", all_captions(photos))
    (photos / "red-0.png").write_bytes(b"no picture at all")
    found = both(photos, captions)
    assert any("red-0.png: not a readable image" in line for p in found.values() for line in p.skipped)
    assert sum(map(len, found.values())) == 9


def test_images_too_many_for_memory_stay_on_disk(photos: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    captions = write_csv(tmp_path / "c.csv", all_captions(photos))
    here = both(photos, captions)["train"]
    monkeypatch.setenv("NONNEG_RESIDENT_GB", "0")
    there = both(photos, captions)["train"]
    assert isinstance(there.images.images, data.Files) and there.captions == here.captions
    assert torch.equal(there.images.images[torch.arange(len(there))], here.images.images)  # pyright: ignore


def test_a_caption_however_long_is_read_from_every_kind_of_file(tmp_path: Path) -> None:
    long = "word " * 40_000
    for path in (
        write_csv(tmp_path / "c.csv", [("id", "caption"), ("a", long)]),
        write_jsonl(tmp_path / "c.jsonl", [{"id": "a", "caption": long}]),
    ):
        assert [c.text for c in pairs.read_captions(path)] == [long.strip()]


# One clear sentence


@pytest.mark.parametrize(
    ("name", "text", "message"),
    [
        ("c.txt", "id,caption\n", r"read from \.csv, \.tsv and \.jsonl"),
        ("c.csv", "id,caption\n", "holds no captions"),
        ("c.csv", "", "columns none; it needs one for the image"),
        ("c.csv", "name,caption\na,b\n", "columns name, caption; it needs one for the image: id or image"),
        ("c.csv", "id,says\na,b\n", "it needs one for the caption: caption"),
        ("c.csv", "id,file,caption\na,b,c\n", "needs only one for the image"),
        ("c.csv", "id,caption\nred,a cat, sitting\n", 'line 2 has 3 fields where the header has 2; put .* in "quotes"'),
        (
            "c.csv",
            "id,caption\nred\n",
            "line 2 has 1 fields where the header has 2; write the separator before an empty",
        ),
        ("c.csv", "id,note,note,caption\nred,x\n", "line 2 has 2 fields where the header has 4"),
        ("c.csv", "id;caption\nred;a cat\n", "columns id;caption; it needs .*; ';' does not separate columns here"),
        ("c.csv", "id\tcaption\nred\ta cat\n", "a tab does not separate columns here"),
        ("c.csv", 'id,caption\nred,"a "cat" here"\n', "the row that begins in line 2 cannot be .*; .* written twice"),
        ("c.csv", 'id,caption\nred,"a cat\ngreen,x\n', r"line 2 cannot be read \(unexpected end of data\); .* closed"),
        ("c.tsv", 'id\tcaption\nred\t"a" cat\n', r"begins in line 2 cannot be read \(a tab expected after"),
        ("c.jsonl", '{"id": "red", "caption": "x"}\nnonsense\n', "line 2 is not JSON"),
        ("c.jsonl", '{"id": "red", "caption": ' + "[" * 100_000, "line 1 is not JSON"),
        ("c.jsonl", "[1]\n", "line 1 is not an object"),
        ("c.jsonl", '{"id": "red"}\n', "line 1 has the columns id; it needs one for the caption"),
        ("c.jsonl", '{"id": "red", "caption": 3}\n', "line 1 has the caption 3"),
        ("c.jsonl", '{"id": true, "caption": "x"}\n', "line 1 names no image"),
        ("c.csv", "id,caption\nghost,x\n", "no pair of image and caption for split 'train'.*first"),
    ],
)
def test_a_captions_file_that_cannot_be_used_says_why(
    photos: Path, tmp_path: Path, name: str, text: str, message: str
) -> None:
    (tmp_path / name).write_text(text)
    with pytest.raises(BadInput, match=message):
        pairs.folder(root=photos, captions=tmp_path / name)


def test_an_id_that_fits_two_images_is_refused(tmp_path: Path) -> None:
    for split in ("train", "test"):
        picture(tmp_path / "p" / split / "cat.png", (1, 2, 3))
    captions = write_csv(tmp_path / "c.csv", [("id", "caption"), ("cat", "a cat")])
    with pytest.raises(BadInput, match=r"line 2: the id 'cat' fits 2 images \(train/cat.png and test/cat.png\)"):
        pairs.folder(root=tmp_path / "p", captions=captions)


def test_test_images_without_captions_are_said_when_training_begins(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for split in ("train", "test"):
        picture(tmp_path / "p" / split / f"{split}.png", (1, 2, 3))
    rows = [("id", "caption"), ("train/train.png", "a cat")]
    assert len(pairs.folder(root=tmp_path / "p", captions=write_csv(tmp_path / "c.csv", rows))) == 1
    assert "no test image has a caption" in " ".join(capsys.readouterr().err.split())
    rows.append(("test/test.png", "a dog"))
    assert len(pairs.folder(root=tmp_path / "p", captions=write_csv(tmp_path / "c.csv", rows))) == 1
    assert "no test image" not in capsys.readouterr().err


def test_missing_files_and_other_encodings_say_so(photos: Path, tmp_path: Path) -> None:
    with pytest.raises(BadInput, match="need a captions file; pass --captions"):
        pairs.folder(root=photos)
    with pytest.raises(BadInput, match="does not exist; pass --captions"):
        pairs.folder(root=photos, captions=tmp_path / "none.csv")
    (tmp_path / "latin.csv").write_bytes("id,caption\nred-0,caf\u00e9\n".encode("latin-1"))
    with pytest.raises(BadInput, match="not UTF-8 text"):
        pairs.folder(root=photos, captions=tmp_path / "latin.csv")
    (tmp_path / "bom.csv").write_bytes("\ufeffid,caption\nred-0,x\ngreen-1,y\nblue-1,z\nwhite-0,v\n".encode())
    assert (
        "x"
        in both(photos, tmp_path / "bom.csv")["train"].captions + both(photos, tmp_path / "bom.csv")["test"].captions
    )


def test_pairs_check_their_parts() -> None:
    images = data.Dataset("toy", torch.zeros(2, 1, 4, 4, dtype=torch.uint8), None, None, ["a", "b"])
    one = torch.ones(2, dtype=torch.int64)
    for captions, counts, message in (
        (["x", "y"], one[:1], "how many captions each of the 2 images has"),
        (["x"], torch.tensor([1, 0]), "image 1 has no caption"),
        (["x"], one, "1 captions but counts add up to 2"),
        (["x", " "], one, "caption 1 is empty"),
    ):
        with pytest.raises(BadInput, match=message):
            Pairs(images, captions, counts)
    with pytest.raises(BadInput, match="captions of image 1 are a text, 'red'; give a list of texts"):
        paired(images, [["x"], "red"])
    whole = paired(images, [["x"], ["y", "z"]])
    part = whole.subset([1])
    assert part.captions == ["y", "z"] and part.images.ids == ["b"] and len(part) == 1
    assert whole.subset([1, 0]).captions == ["y", "z", "x"]
    assert whole.named(["b"]).captions == ["y", "z"] and whole.named(["a", "b"]) is whole
    assert whole.fingerprint() != paired(images, [["x"], ["y", "w"]]).fingerprint()
    assert whole.fingerprint() != paired(images, [["x", "y"], ["z"]]).fingerprint()


# Digits and emoji


def test_digits_are_called_by_their_names() -> None:
    train, plain = pairs.digits(split="train"), data.digits(split="train")
    assert train.images.ids == plain.ids and set(train.counts.tolist()) == {4}
    texts, labels = by_image(train), plain.labels
    assert labels is not None
    for name, y in zip(plain.ids, labels.tolist(), strict=True):
        number = ("zero", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine")[y]
        assert texts[name][:2] == [number, f"a handwritten {number}"]
    with pytest.raises(BadInput, match="digits have their own captions"):
        pairs.digits(captions=Path("c.csv"))


def toy_emoji(root: Path, many: int = 12) -> Path:
    """emoji.json and two vendors' pictures; every second emoji has two skin tones."""
    entries = []
    for i in range(many):
        entry = {
            "name": f"THING NUMBER {i}",
            "unified": f"1F{i:03}",
            "image": f"1f{i:03}.png",
            "short_names": [f"thing_{i}", f"thing-number-{i}"],
            "category": f"kind {i % 3}",
        }
        if i % 2:
            tones = {"1F3FB": f"1f{i:03}-1f3fb.png", "1F3FF-1F3FB": f"1f{i:03}-1f3ff-1f3fb.png"}
            entry["skin_variations"] = {tone: {"image": image} for tone, image in tones.items()}
        entries.append(entry)
        for vendor in ("google", "twitter"):
            for image in (entry["image"], *(v["image"] for v in entry.get("skin_variations", {}).values())):
                picture(root / vendor / image, (i, 0, 0 if vendor == "google" else 255))
    (root / "emoji.json").write_text(json.dumps(entries))
    return root


def test_both_vendors_and_all_skin_tones_of_an_emoji_are_on_one_side(tmp_path: Path) -> None:
    toy_emoji(tmp_path / "emoji")
    found = {s: pairs.emoji(split=s, root=tmp_path) for s in ("train", "test")}
    base = {
        s: {name.split("/")[1].removesuffix(".png").split("-")[0] for name in p.images.ids} for s, p in found.items()
    }
    assert not base["train"] & base["test"] and len(base["test"]) == 2 and len(base["train"] | base["test"]) == 12
    for p in found.values():
        names = set(p.images.ids)
        assert {n.replace("google", "twitter") for n in names} == {
            n.replace("google", "twitter") for n in names if n[0] == "t"
        }
        for stem in {n.split("/")[1].removesuffix(".png").split("-")[0] for n in names}:
            tones = 3 if int(stem[2:]) % 2 else 1
            assert sum(stem in n for n in names) == 2 * tones


def test_emoji_are_called_by_their_names_and_tones(tmp_path: Path) -> None:
    p = pairs.emoji(root=toy_emoji(tmp_path), image_size=16)
    q = pairs.emoji(split="test", root=tmp_path)
    texts = by_image(p) | by_image(q)
    assert texts["google/1f002.png"] == ["thing number 2", "thing 2"] == texts["twitter/1f002.png"]
    assert texts["google/1f003-1f3fb.png"] == ["thing number 3, light skin tone", "thing 3, light skin tone"]
    assert texts["google/1f003-1f3ff-1f3fb.png"][1] == "thing 3, dark skin tone and light skin tone"
    assert (
        p.images.image_size == 16 and q.images.image_size == 32 and p.images.classes == ["kind 0", "kind 1", "kind 2"]
    )


def test_emoji_that_are_not_there_say_what_to_do(tmp_path: Path) -> None:
    with pytest.raises(BadInput, match=r"has no emoji\.json; pass the folder"):
        pairs.emoji(root=tmp_path)
    with pytest.raises(BadInput, match="emoji have their own names"):
        pairs.emoji(root=tmp_path, captions=tmp_path)
    toy_emoji(tmp_path, 4)
    (tmp_path / "google" / "1f000.png").unlink()
    found = [line for s in ("train", "test") for line in pairs.emoji(split=s, root=tmp_path).skipped]
    assert found == ["google/1f000.png: no such file (a broken link?)"]
    (tmp_path / "emoji.json").write_text('[{"name": "X"}]')
    with pytest.raises(BadInput, match="is not emoji-datasource's"):
        pairs.emoji(root=tmp_path)
    (tmp_path / "emoji.json").write_text("[]")
    (tmp_path / "twitter").rename(tmp_path / "elsewhere")
    with pytest.raises(BadInput, match="no folder twitter/"):
        pairs.emoji(root=tmp_path)


def test_emoji_are_fetched_by_npm_checked_and_unpacked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The packages as npm packs them, from an npm that copies archives and counts its calls."""
    import hashlib
    import sys

    room = sys.modules["nonneg.pairs.emoji"]
    source, shelf = toy_emoji(tmp_path / "source", 6), tmp_path / "shelf"
    shelf.mkdir()
    sums = {}
    for vendor in ("google", "twitter"):
        archive = shelf / f"emoji-datasource-{vendor}-16.0.0.tgz"
        with tarfile.open(archive, "w:gz") as tar:
            tar.add(source / "emoji.json", "package/emoji.json")
            for path in sorted((source / vendor).iterdir()):
                tar.add(path, f"package/img/{vendor}/64/{path.name}")
            blank = tarfile.TarInfo("package/img/large.png")
            blank.size = 3
            tar.addfile(blank, io.BytesIO(b"big"))
        sums[vendor] = hashlib.sha256(archive.read_bytes()).hexdigest()
    npm = tmp_path / "bin" / "npm"
    npm.parent.mkdir()
    npm.write_text(
        f"""#!{sys.executable}
import shutil, sys
from pathlib import Path
assert sys.argv[1] == "pack" and sys.argv[4] == "--pack-destination"
open({str(tmp_path / "calls")!r}, "a").write(sys.argv[2] + "\\n")
archive = Path({str(shelf)!r}) / (sys.argv[2].replace("@", "-") + ".tgz")
if not archive.exists():
    sys.exit("npm error code E404")
shutil.copy(archive, sys.argv[5])
"""
    )
    npm.chmod(0o755)
    monkeypatch.setenv("PATH", str(npm.parent))
    monkeypatch.setattr(room, "VENDORS", sums)
    monkeypatch.setenv("NONNEG_DATA", str(tmp_path / "cache"))
    here, there = pairs.emoji(), pairs.emoji(root=source)
    pairs.emoji(split="test")
    assert here.fingerprint() == there.fingerprint() and here.images.ids == there.images.ids
    calls = (tmp_path / "calls").read_text().split()
    assert calls == ["emoji-datasource-google@16.0.0", "emoji-datasource-twitter@16.0.0"]  # once: then it is kept
    assert not (tmp_path / "cache" / "emoji-google" / "package" / "img" / "large.png").exists()
    assert sorted(p.name for p in (tmp_path / "cache").iterdir()) == ["emoji-google", "emoji-twitter"]

    monkeypatch.setenv("NONNEG_DATA", str(tmp_path / "elsewhere"))
    monkeypatch.setattr(room, "VENDORS", {"google": "0" * 64})
    with pytest.raises(BadInput, match=r"another checksum than expected.*pass --data-root"):
        pairs.emoji()
    (shelf / "emoji-datasource-google-16.0.0.tgz").unlink()
    with pytest.raises(
        BadInput, match=r"npm could not fetch emoji-datasource-google \(npm error code E404\).*--data-root"
    ):
        pairs.emoji()
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(
        BadInput, match=r"packages of npm, which is not installed.*emoji-datasource-google.*--data-root"
    ):
        pairs.emoji()
    assert not list((tmp_path / "elsewhere").iterdir())


def test_the_command_line_offers_these_sets() -> None:
    role = Role("set of pairs", pairs, ("split", "root", "captions", "image_size", "strict"))
    assert set(role.functions()) == {"digits", "emoji", "folder"}
