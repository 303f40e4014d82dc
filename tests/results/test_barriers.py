"""Files of barriers, and what is refused in them."""

import pytest
from zoo import ZOO

import thalweg as tw


def networks(count=3):
    return [tw.Weights.of(ZOO["mlp"].module(seed)) for seed in range(count)]


def test_barriers_save_and_load(tmp_path):
    points = dict(zip("abc", networks(), strict=True))
    data = {"train": ZOO["mlp"].batches(), "test": ZOO["mlp"].batches()[:1]}
    found = tw.barriers(ZOO["mlp"].module(9), points, ZOO["mlp"].task, data, align=True, points=4)
    found.save(tmp_path / "barriers.json")
    loaded = tw.Barriers.load(tmp_path)
    assert loaded.to_dict() == found.to_dict()
    assert loaded.table() == found.table()
    head, *rows = found.to_csv().splitlines()
    assert head == "first,second,aligned,train_loss,train_error,test_loss,test_error"
    assert [row.split(",")[:3] for row in rows[:4]] == [
        ["a", "b", "0"],
        ["a", "c", "0"],
        ["b", "c", "0"],
        ["a", "b", "1"],
    ]
    assert float(rows[1].split(",")[3]) == found.matrix[0, 2]


SHORT, WHOLE = ({"data": {"loss": [[[0.0] * 3] * 3] * rows}} for rows in (2, 3))


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"networks": ["a", "b"]}, "its values are not one per point of each line"),
        ({"t": [0.0, 1.0]}, "its values are not one per point of each line"),
        ({"values": SHORT}, "its values are not one per point of each line"),
        ({"aligned": SHORT}, "its values are not one per point of each line"),
        ({"aligned": WHOLE}, "its aligned values are of other quantities than the rest"),
        ({"networks": ["a"]}, "it holds no line between two networks"),
        ({"t": [0.0]}, "it holds no line between two networks"),
        ({"values": {}}, "it holds no line between two networks"),
    ],
)
def test_barriers_load_refuses_other_shapes(change, said):
    found = tw.barriers(ZOO["mlp"].module(9), networks(), ZOO["mlp"].task, ZOO["mlp"].batches(), points=3)
    with pytest.raises(ValueError, match=said):
        tw.Barriers.checked({**found.to_dict(), **change})


def test_barriers_name_what_was_not_measured():
    found = tw.barriers(ZOO["mlp"].module(9), networks(2), ZOO["mlp"].task, ZOO["mlp"].batches(), points=3)
    with pytest.raises(tw.ThalwegError, match=r"measure them with barriers\(..., align=True\)"):
        found.between(aligned=True)
    with pytest.raises(tw.ThalwegError, match=r"no 'nll' on 'data'; they have {'data': "):
        found.between(quantity="nll")
