"""Labels as others lay them out: split folders, ImageFolder, YOLO, VOC, Roboflow; and what one wrong entry costs."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import cv2
import numpy as np
import pytest

from edgeopt.errors import InvalidFileError, NoteKind
from edgeopt.measurement.accuracy.evaluate import open_labelled
from edgeopt.recipes.labels import read_labels
from edgeopt.recipes.recipe import find_recipe

DIGITS = Path(__file__).parents[2] / "models" / "digits_detector" / "eval"


def draw(path: Path, seed: int = 0) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    assert cv2.imwrite(str(path), np.random.default_rng(seed).integers(0, 256, (24, 32, 3), np.uint8))


def coco(images: int = 3, **changed: object) -> dict[str, object]:
    values = {
        "images": [{"id": i, "file_name": f"{i:03}.png", "width": 32, "height": 24} for i in range(images)],
        "annotations": [{"id": i, "image_id": i, "category_id": 1, "bbox": [1, 2, 10, 8]} for i in range(images)],
        "categories": [{"id": 1, "name": "cat"}, {"id": 2, "name": "dog"}],
    }
    return {**values, **changed}


def write(file: Path, values: object) -> Path:
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(json.dumps(values))
    return file


def test_labels_whose_first_pictures_are_absent_match_the_others(tmp_path):
    labels = write(tmp_path / "labels.json", coco(300))
    for i in (25, 299):
        draw(tmp_path / f"{i:03}.png")
    opened = open_labelled(labels)
    assert opened.labels.files == ("025.png", "299.png")
    assert "298 labelled pictures not in" in opened.notes[0].detail


@pytest.mark.parametrize("kind", ["csv", "txt", "png"])
def test_other_labels_whose_first_pictures_are_absent(tmp_path, kind):
    names = [f"{i:03}" for i in range(60)]
    if kind == "csv":
        labels = tmp_path / "val.csv"
        labels.write_text("".join(f"{name}.png,1\n" for name in names))
    elif kind == "txt":
        labels = tmp_path / "val.txt"
        labels.write_text("".join(f"{name}.png\tabc\n" for name in names))
    else:
        labels = tmp_path / "masks"
        labels.mkdir()
        for name in names:
            cv2.imwrite(str(labels / f"{name}.png"), np.ones((24, 32), np.uint8))
    draw(tmp_path / "images" / "041.png")
    assert open_labelled(labels).labels.files == ("041.png",)


def test_the_folder_with_most_of_the_pictures_is_taken(tmp_path):
    labels = write(tmp_path / "val.json", coco(30))
    draw(tmp_path / "003.png")
    for i in range(30):
        draw(tmp_path / "val" / f"{i:03}.png")
    assert len(open_labelled(labels).frames) == 30


@pytest.mark.parametrize(
    ("labels", "pictures"),
    [
        ("annotations/instances_val2017.json", "val2017"),
        ("annotations/instances_val.json", "images/val"),
        ("annotations/val.json", "val"),
        ("labels/all.json", "images"),
        ("all.json", "images"),
    ],
)
def test_pictures_beside_the_folder_of_the_labels_are_found(tmp_path, labels, pictures):
    path = write(tmp_path / labels, coco())
    for i in range(3):
        draw(tmp_path / pictures / f"{i:03}.png")
    assert len(open_labelled(path).frames) == 3


@pytest.mark.parametrize("form", ["/home/bob/data/val/{}", "images\\{}", "C:\\data\\images\\{}", "a/b/{}"])
def test_paths_of_another_machine_are_shortened_until_they_match(tmp_path, form):
    images = [{"id": i, "file_name": form.format(f"{i:03}.png")} for i in range(3)]
    labels = write(tmp_path / "labels.json", coco() | {"images": images})
    for i in range(3):
        draw(tmp_path / "images" / f"{i:03}.png")
    opened = open_labelled(labels)
    assert len(opened.frames) == 3
    assert "pictures are looked for as" in opened.notes[0].detail
    assert len({one["file_name"] for one in opened.labels.coco["images"]} & set(opened.labels.files)) == 3


def test_pictures_of_another_suffix_or_without_one_in_the_labels_are_found(tmp_path):
    (tmp_path / "val.csv").write_text("id,label\n000,cat\n001,dog\n")
    images = [{"id": i, "file_name": f"{i:03}.jpg"} for i in range(3)]
    labels = write(tmp_path / "labels.json", coco() | {"images": images})
    for i in range(3):
        draw(tmp_path / "images" / f"{i:03}.png")
    assert open_labelled(tmp_path / "val.csv").labels.files == ("000.png", "001.png")
    opened = open_labelled(labels)
    assert opened.labels.files == ("000.png", "001.png", "002.png")
    assert "'000.png' for '000.jpg'" in opened.notes[0].detail


def test_labels_that_are_pointers_of_git_lfs_are_told_their_cure(tmp_path):
    pointer = "version https://git-lfs.github.com/spec/v1\noid sha256:0\nsize 12\n"
    for name in ("labels.json", "val.csv", "val.rttm", "yolo/a.txt", "voc/a.xml", "other.labels"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(pointer)
        given = tmp_path / name if "/" not in name else (tmp_path / name).parent
        with pytest.raises(InvalidFileError, match="is a pointer of Git LFS"):
            read_labels(given)


ROBOFLOW = [{"id": 0, "name": "pets", "supercategory": "none"}, {"id": 1, "name": "cat", "supercategory": "pets"}]
SAME_NAME = [{"id": 0, "name": "cat", "supercategory": "none"}, {"id": 1, "name": "cat", "supercategory": "cat"}]


@pytest.mark.parametrize("categories", [ROBOFLOW, SAME_NAME, SAME_NAME[::-1]])
def test_a_parent_category_that_labels_nothing_is_left_out(tmp_path, categories):
    labels = read_labels(write(tmp_path / "labels.json", coco(categories=categories)))
    assert labels.coco["categories"] == [{"id": 1, "name": "cat"}]
    assert labels.categories_of(["cat"]) == labels.categories_of([]) == {0: 1}
    (note,) = labels.notes
    assert (note.kind, "is the parent of others" in note.detail) == (NoteKind.INFO, True)


def test_a_category_of_coco_that_this_set_does_not_label_stays(tmp_path):
    categories = [
        {"id": 1, "name": "person", "supercategory": "person"},
        {"id": 2, "name": "bicycle", "supercategory": "vehicle"},
        {"id": 3, "name": "car", "supercategory": "vehicle"},
        {"id": 4, "name": "vehicle", "supercategory": "outdoor"},
    ]
    boxes = [{"id": i, "image_id": i, "category_id": 2, "bbox": [1, 2, 10, 8]} for i in range(3)]
    labels = read_labels(write(tmp_path / "labels.json", coco(categories=categories, annotations=boxes)))
    assert [one["id"] for one in labels.coco["categories"]] == [1, 2, 3, 4]


WRONG_ENTRIES = {
    "negative width": {"bbox": [5, 5, -3, 4]},
    "negative height": {"bbox": [5, 5, 3, -4]},
    "left of everything": {"bbox": [-50, 5, 3, 4]},
    "no box": {"bbox": None},
    "three numbers": {"bbox": [1, 2, 3]},
    "unknown image": {"image_id": 999},
    "unknown category": {"category_id": 99},
    "crowd": {"iscrowd": "no"},
}


@pytest.mark.parametrize("name", WRONG_ENTRIES)
def test_one_wrong_annotation_costs_itself(tmp_path, name):
    boxes = coco(4)["annotations"]
    boxes[1] |= WRONG_ENTRIES[name] | {"segmentation": []}
    boxes[2]["segmentation"] = [[1, 1, 2, 2, 3, 3]]
    labels = read_labels(write(tmp_path / "labels.json", coco(4, annotations=boxes)))
    assert [one["image_id"] for one in labels.coco["annotations"]] == [0, 2, 3]
    assert labels.beside[1] == {"segmentation": [[1, 1, 2, 2, 3, 3]]}
    for i in range(4):
        draw(tmp_path / f"{i:03}.png")
    note = open_labelled(tmp_path / "labels.json").notes[0]
    assert note.kind is NoteKind.WARNING
    assert "1 of 4 annotations left out, the first annotations[1]: " in note.detail


def test_a_box_that_is_missing_is_that_of_its_outline(tmp_path):
    boxes = [{"id": 1, "image_id": 0, "category_id": 1, "segmentation": [[5, 6, 15, 6, 15, 20]]}]
    labels = read_labels(write(tmp_path / "labels.json", coco(1, annotations=boxes)))
    assert labels.coco["annotations"][0]["bbox"] == [5, 6, 10, 14]


def folders(root: Path, *names: str, suffix: str = ".png") -> Path:
    for i, name in enumerate(names):
        draw(root / f"{name}{suffix}", i)
    return root


def indices(labels, names):
    places = labels.indices_of(names)
    return {file: places[one] for file, one in zip(labels.files, labels.classes, strict=True)}


@pytest.mark.parametrize("root", ["", "val/", "valid/", "test/"])
def test_class_folders_are_labels(tmp_path, root):
    folders(tmp_path, f"{root}dog/a", f"{root}dog/b", f"{root}cat/a")
    if root:
        folders(tmp_path, "train/cat/z", "train/dog/z")
    opened = open_labelled(tmp_path)
    assert indices(opened.labels, ["bird", "Dog", "cat"]) == {"cat/a.png": 2, "dog/a.png": 1, "dog/b.png": 1}
    np.testing.assert_array_equal(opened.frames.picture(0), cv2.imread(str(tmp_path / root / "cat" / "a.png")))
    assert [root.strip("/") in note.detail for note in opened.notes] == ([True] if root else [])


def test_class_folders_of_jpegs_beside_other_files(tmp_path):
    folders(tmp_path, "dog/a", "cat/a", suffix=".JPEG")
    (tmp_path / "cat" / "b.heic").write_bytes(b"0")
    (tmp_path / "cat" / "notes.txt").write_text("0")
    (tmp_path / "README.md").write_text("0")
    opened = open_labelled(tmp_path)
    assert opened.labels.files == ("cat/a.JPEG", "dog/a.JPEG")
    assert "1 .heic" in opened.notes[0].detail


def test_class_folders_are_matched_by_name_by_number_or_by_order(tmp_path):
    labels = read_labels(folders(tmp_path / "named", "polar_bear/a", "tabby-cat/b"))
    assert indices(labels, ["Tabby cat", "polar bear"]) == {"polar_bear/a.png": 1, "tabby-cat/b.png": 0}
    assert labels.check_classes(["Tabby cat", "polar bear"]) == ()
    with pytest.raises(InvalidFileError, match="'tabby-cat' is no class of the recipe"):
        labels.indices_of(["polar bear", "dog"])
    (note,) = labels.check_classes([])
    assert "the recipe names no classes, so they are taken in their order: 0 polar_bear, 1 tabby-cat" in note.detail
    numbered = read_labels(folders(tmp_path / "numbered", "2/a", "10/b"))
    assert indices(numbered, []) == indices(numbered, ["x"] * 11) == {"2/a.png": 2, "10/b.png": 10}
    wordnet = read_labels(folders(tmp_path / "wordnet", "n02/a", "n01/b"))
    assert indices(wordnet, ["tench", "shark"]) == {"n01/b.png": 0, "n02/a.png": 1}
    assert wordnet.check_classes(["tench", "shark"])[0].kind is NoteKind.WARNING
    with pytest.raises(InvalidFileError, match="'n01' is no class of the recipe"):
        wordnet.indices_of(["tench", "shark", "ray"])
    assert wordnet.indices_of([], 2) == wordnet.indices_of([]) == (0, 1)
    with pytest.raises(InvalidFileError, match="has 2 class names, the model 1000 classes, and its recipe names none"):
        wordnet.indices_of([], 1000)


def test_a_csv_may_name_classes(tmp_path):
    (tmp_path / "val.csv").write_text("image;label\na.png;Dog\nb.png;cat\nc.png;Dog\n")
    labels = read_labels(tmp_path / "val.csv")
    assert indices(labels, ["cat", "dog"]) == {"a.png": 1, "b.png": 0, "c.png": 1}


def digits_in(folder: Path) -> tuple[Path, dict[str, object]]:
    """Copy a few labelled pictures; return the folder of the pictures, and their labels."""
    values = json.loads((DIGITS / "instances.json").read_text())
    values["images"] = values["images"][:6]
    kept = {one["id"] for one in values["images"]}
    values["annotations"] = [one for one in values["annotations"] if one["image_id"] in kept]
    folder.mkdir(parents=True)
    for one in values["images"]:
        shutil.copyfile(DIGITS / "images" / one["file_name"], folder / one["file_name"])
    return folder, values


def boxes_by_picture(opened) -> dict[str, list[list[float]]]:
    """Return class and corners of each box of each picture that is read."""
    labels = opened.labels
    index = {category: i for i, category in labels.categories_of(tuple("0123456789")).items()}
    names = {one["id"]: one["file_name"] for one in labels.coco["images"]}
    found: dict[str, list[list[float]]] = {name: [] for name in labels.files}
    for one in labels.coco["annotations"]:
        found[names[one["image_id"]]].append([index[one["category_id"]], *one["bbox"]])
    return {name: sorted(boxes) for name, boxes in found.items()}


def write_yolo(folder: Path, values: dict[str, object]) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    for image in values["images"]:
        lines = []
        for one in values["annotations"]:
            if one["image_id"] == image["id"]:
                left, top, width, height = one["bbox"]
                name = next(each["name"] for each in values["categories"] if each["id"] == one["category_id"])
                place = (left + width / 2) / image["width"], (top + height / 2) / image["height"]
                numbers = (*place, width / image["width"], height / image["height"])
                lines.append(" ".join([name, *map(str, numbers)]) + "\r\n")
        (folder / Path(image["file_name"]).with_suffix(".txt").name).write_bytes("".join(lines).encode("utf-8-sig"))
    return folder


def write_voc(folder: Path, values: dict[str, object]) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    names = {one["id"]: one["name"] for one in values["categories"]}
    for image in values["images"]:
        text = f"<annotation><filename>{image['file_name']}</filename>"
        for one in values["annotations"]:
            if one["image_id"] == image["id"]:
                left, top, width, height = one["bbox"]
                corners = zip(
                    ("xmin", "ymin", "xmax", "ymax"), (left + 1, top + 1, left + width, top + height), strict=True
                )
                box = "".join(f"<{key}>{value}</{key}>" for key, value in corners)
                text += f"<object><name>{names[one['category_id']]}</name><bndbox>{box}</bndbox></object>"
        (folder / Path(image["file_name"]).with_suffix(".xml").name).write_text(text + "</annotation>")
    return folder


@pytest.mark.parametrize(
    ("write_labels", "labels", "pictures", "named"),
    [
        (write_yolo, "labels/val", "images/val", "labels/val"),
        (write_yolo, "labels/val", "images/val", "."),
        (write_yolo, "valid/labels", "valid/images", "valid/labels"),
        (write_yolo, "valid/labels", "valid/images", "."),
        (write_yolo, "labels", "images", "labels"),
        (write_yolo, "both", "both", "both"),
        (write_voc, "Annotations", "JPEGImages", "Annotations"),
        (write_voc, "Annotations", "JPEGImages", "."),
        (write_voc, "both", "both", "both"),
    ],
)
def test_boxes_of_yolo_and_voc_are_those_of_coco(tmp_path, write_labels, labels, pictures, named):
    values = digits_in(tmp_path / pictures)[1]
    expected = boxes_by_picture(open_labelled(write(tmp_path / pictures / "coco.json", values)))
    (tmp_path / pictures / "coco.json").unlink()
    write_labels(tmp_path / labels, values)
    found = open_labelled(tmp_path / named, find_recipe("digits_detector"))
    assert found.notes == ()
    boxes = boxes_by_picture(found)
    assert boxes.keys() == expected.keys()
    for name, rows in expected.items():
        np.testing.assert_allclose(boxes[name], rows, atol=1e-3)


def test_a_roboflow_folder_is_its_json(tmp_path):
    folder, values = digits_in(tmp_path / "valid")
    write(folder / "_annotations.coco.json", values)
    assert len(open_labelled(folder).frames) == 6


def test_wrong_lines_of_yolo_and_voc_cost_themselves_and_empty_pictures_are_told(tmp_path):
    folder, values = digits_in(tmp_path / "images")
    write_yolo(tmp_path / "labels", values)
    (tmp_path / "labels" / "classes.txt").write_text("\n".join("0123456789"))
    first = tmp_path / "labels" / Path(values["images"][0]["file_name"]).with_suffix(".txt").name
    first.write_text(first.read_text("utf-8-sig") + "1 0.5 0.5 -0.1 0.1\n3 0.1 0.1 0.2 0.1 0.2 0.3\n")
    draw(folder / "empty.png")
    labels, notes = (opened := open_labelled(tmp_path / "labels")).labels, opened.notes
    assert "1 of " in notes[0].detail
    assert "lies outside of the picture, or is no fraction of it" in notes[0].detail
    assert "1 picture in" in notes[1].detail
    assert "nothing is to be found there" in notes[1].detail
    assert "empty.png" in labels.files
    assert [one for one in labels.beside if one.get("segmentation")]
    (tmp_path / "labels" / "bad.txt").write_text("0 30 40 50 60\n" * 100)
    with pytest.raises(InvalidFileError, match=r"lies outside of the picture.*; 101 entries are wrong") as caught:
        read_labels(tmp_path / "labels")
    assert "fractions of the picture" in caught.value.remedy
    write_voc(tmp_path / "xml", values)
    (tmp_path / "xml" / "bad.xml").write_text(
        "<a><object><name>1</name><bndbox><xmin>9</xmin><ymin>1</ymin><xmax>3</xmax><ymax>4</ymax></bndbox></object></a>"
    )
    (note,) = read_labels(tmp_path / "xml").notes
    assert "1 of " in note.detail
    assert "bad.xml object 1: bndbox is" in note.detail
    (tmp_path / "xml" / "worse.xml").write_text("<!DOCTYPE a [<!ENTITY b 'c'>]><a>&b;</a>")
    with pytest.raises(InvalidFileError, match="declares entities"):
        read_labels(tmp_path / "xml")
    (tmp_path / "xml" / "worse.xml").write_text("<a>")
    with pytest.raises(InvalidFileError, match="is no XML"):
        read_labels(tmp_path / "xml")
