"""A label file is checked once: the first wrong entry is named, and how many there are; or it is read right."""

from __future__ import annotations

import json

import pytest

from edgeopt.errors import InvalidFileError
from edgeopt.recipes.labels import read_labels


def coco(**changed):
    """Two pictures, two boxes, two categories; a list given replaces one, a dict changes each of its entries."""
    values = {
        "images": [{"id": i, "file_name": f"{i}.jpg", "width": 64, "height": 48} for i in (1, 2)],
        "annotations": [{"id": i, "image_id": i, "category_id": 3, "bbox": [1, 2, 10, 20]} for i in (1, 2)],
        "categories": [{"id": 3, "name": "cat"}, {"id": 4, "name": "dog"}],
    }
    for key, change in changed.items():
        values[key] = [{**one, **change} for one in values[key]] if isinstance(change, dict) else change
    return values


def without(kind, key):
    values = coco()
    return {**values, kind: [{k: v for k, v in one.items() if k != key} for one in values[kind]]}


def read(tmp_path, values):
    path = tmp_path / "labels.json"
    path.write_text(json.dumps(values))
    return read_labels(path)


WRONG = {
    "a list": ([], "no list images"),
    "no categories": ({"images": [], "annotations": []}, "no list categories"),
    "no annotations": (coco(annotations=[]), "annotations are empty"),
    "nothing": (coco(images=[], annotations=[], categories=[]), "images and categories and annotations are empty"),
    "image without id": (without("images", "id"), "images[0]: it has no id; 4 entries are wrong"),
    "category without id": (without("categories", "id"), "categories[0]: it has no id"),
    "image id as text": (coco(images={"id": "1"}), "images[0]: id is '1', no whole number"),
    "image ids alike": (coco(images={"id": 1}), "images[1]: id 1 is there twice"),
    "category ids alike": (coco(categories={"id": 3}), "categories[1]: id 3 is there twice; 1"),
    "names alike": (coco(categories=[{"id": 3, "name": "cat"}, {"id": 4, "name": "Cat"}]), "name 'Cat' is there twice"),
    "name missing": (without("categories", "name"), "name is None"),
    "name long": (coco(categories={"name": "n" * 4000}), "no text of 1 to 255 characters"),
    "files alike": (coco(images={"file_name": "a.jpg"}), "images[1]: file_name 'a.jpg' is there twice"),
    "file missing": (without("images", "file_name"), "images[0]: file_name is None"),
    "file a number": (coco(images={"file_name": 5}), "file_name is 5"),
    "file empty": (coco(images={"file_name": " "}), "file_name is ' '"),
    "file long": (coco(images={"file_name": "n" * 4000}), "longer than a file name can be"),
    "file with zero": (coco(images={"file_name": "a\0b"}), "longer than a file name can be"),
    "file no text": (coco(images={"file_name": "\ud800"}), "no text"),
    "width text": (coco(images={"width": "wide"}), "width is 'wide', no number of pixels"),
    "height zero": (coco(images={"height": 0}), "height is 0, no number of pixels"),
    "image no object": (coco(images=["a.jpg"]), "images[0]: 'a.jpg' is no object"),
    "annotation no object": (coco(annotations=[1]), "annotations[0]: 1 is no object"),
    "unknown image": (coco(annotations={"image_id": 9}), "image_id is 9, the id of none of the images; 2 entries"),
    "image_id text": (coco(annotations={"image_id": "1"}), "image_id is '1'"),
    "image_id a list": (coco(annotations={"image_id": [1]}), "image_id is [1]"),
    "image_id missing": (without("annotations", "image_id"), "image_id is None"),
    "unknown category": (coco(annotations={"category_id": 9}), "category_id is 9, the id of none of the categories"),
    "no box": (without("annotations", "bbox"), "bbox is None, not four numbers"),
    "two numbers": (coco(annotations={"bbox": [1, 2]}), "bbox is [1, 2], not four numbers"),
    "box of text": (coco(annotations={"bbox": "abcd"}), "bbox is 'abcd'"),
    "numbers as text": (coco(annotations={"bbox": ["1", "2", "3", "4"]}), "bbox is ['1', '2', '3', '4']"),
    "truth values": (coco(annotations={"bbox": [True, 2, 3, 4]}), "bbox is [True, 2, 3, 4]"),
    "huge numbers": (coco(annotations={"bbox": [1, 2, 1e300, 1e300]}), "not four numbers"),
    "NaN": (coco(annotations={"bbox": [1, 2, 3, float("nan")]}), "annotations[0].bbox[3] is nan"),
    "negative size": (coco(annotations={"bbox": [1, 2, -3, 4]}), "bbox is [1, 2, -3, 4]"),
    "outside": (coco(annotations={"bbox": [-50, 2, 3, 4]}), "lie outside every picture"),
    "iscrowd no": (coco(annotations={"iscrowd": "no"}), "iscrowd is 'no', not 0 or 1"),
    "iscrowd null": (coco(annotations={"iscrowd": None}), "iscrowd is None"),
    "iscrowd five": (coco(annotations={"iscrowd": 5}), "iscrowd is 5"),
}


@pytest.mark.parametrize("name", WRONG)
def test_a_wrong_entry_is_named_and_counted(tmp_path, name):
    values, told = WRONG[name]
    with pytest.raises(InvalidFileError) as caught:
        read(tmp_path, values)
    assert told.removesuffix("; 1") in caught.value.problem
    assert "\n" not in caught.value.problem


def test_ids_and_areas_of_boxes_decide_nothing(tmp_path):
    """COCOeval takes box number 0 for none and equal numbers for one box; the AP must not depend on them."""
    expected = read(tmp_path, coco()).coco
    for change in ({"id": 1}, {"id": 0}, {"id": "x"}, {"area": None}, {"area": "large"}, {"area": -5}):
        assert read(tmp_path, coco(annotations=change)).coco == expected
    assert read(tmp_path, without("annotations", "id")).coco == expected


def test_what_scoring_does_not_read_is_not_handed_on(tmp_path):
    found = read(tmp_path, coco(images={"license": [[[[1]]]]}, annotations={"segmentation": [[1, 2]], "iscrowd": True}))
    assert found.coco["images"][0].keys() == {"id", "file_name", "width", "height"}
    box = {"id": 1, "image_id": 1, "category_id": 3, "bbox": [1.0, 2.0, 10.0, 20.0], "area": 200.0, "iscrowd": 1}
    assert found.coco["annotations"][0] == box


def read_rows(tmp_path, text):
    path = tmp_path / "labels.csv"
    path.write_bytes(text.encode() if isinstance(text, str) else text)
    return read_labels(path)


@pytest.mark.parametrize(
    "text",
    [
        "file,class_index\na.jpg,1\nb.jpg,2\n",
        "a.jpg,1\nb.jpg,2\n",
        "class_index,file\n1,a.jpg\n2,b.jpg\n",
        "File, Class_Index ,note\na.jpg,1,x\nb.jpg,2,\n",
        b"\xef\xbb\xbffile,class_index\r\na.jpg,1\r\n\r\nb.jpg, 2\r\n",
        "picture,label\na.jpg,1\nb.jpg,2\n",
        "filename;class\r\na.jpg;1\r\nb.jpg;2\r\n",
        "image_path\ttarget\na.jpg\t1\nb.jpg\t2\n",
        "label,score,image\n1,0.5,a.jpg\n2,0.7,b.jpg\n",
        "\na.jpg;1\nb.jpg;2",
    ],
)
def test_columns_are_found_by_their_heads(tmp_path, text):
    found = read_rows(tmp_path, text)
    assert (found.files, found.classes) == (("a.jpg", "b.jpg"), (1, 2))


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("", "labels no image"),
        ("file,class_index\n", "labels no image"),
        ("a.jpg,cat\nb.jpg,7\n", "line 1: 'cat' is no class index"),
        ("seen,what\na.jpg,1\n", "line 1: 'what' is no class index"),
        ("a.jpg,1,\nb.jpg,2,\n", "line 1: 3 columns in place of 2: 'a.jpg,1,'"),
        ("file|class_index\na.jpg|1\n", "line 1: 1 column in place of 2"),
        ("a.jpg,1\nb.jpg,2\na.jpg,3\n", "line 3: file 'a.jpg' is there twice"),
        ("a.jpg,-1\n", "'-1' is no class index"),
        ("a.jpg,1_0\n", "'1_0' is no class index"),
        ("a.jpg,99999999999\n", "is no class index"),
        ("a.jpg,\u0663\n", "is no class index"),
        (",1\n", "no file name"),
        ("n" * 4000 + ",1\n", "longer than a file name can be"),
        ('"a.jpg,1\n', "is no CSV"),
        ("a" * 200_000 + ",1\n", "is no CSV"),
        (b"\xff\xfea\x00", "is not UTF-8"),
    ],
)
def test_a_wrong_line_of_a_csv_is_named(tmp_path, text, told):
    with pytest.raises(InvalidFileError) as caught:
        read_rows(tmp_path, text)
    assert told in caught.value.problem
    assert len(caught.value.problem) < 400


def test_a_file_that_is_no_label_file_is_not_opened(tmp_path):
    with pytest.raises(InvalidFileError, match="is no label file"):
        read_labels(tmp_path / "labels.xml")
