"""Whatever is written into recipes, spaces, architectures, cards, tables, images and command lines: it is read, or
refused in one sentence with exit code 2. Never a traceback.

CI tries a sample; ``TAILORVIT_CASES=20000 pytest tests/trust/test_trust_properties.py`` tries that many of each kind.
"""

from __future__ import annotations

import io
import json
import os
import shutil
from copy import deepcopy

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from PIL import Image
from trust_tools import called

from tailorvit.api import recipe_for
from tailorvit.config import Config, configure, overrides, read_recipe, recipe_names
from tailorvit.costs import Counter, Limits, Meter
from tailorvit.errors import TailorError
from tailorvit.export import load
from tailorvit.families import FAMILIES, family, with_settings
from tailorvit.portable import Preprocessing, prepare
from tailorvit.proxies.tables import table_of
from tailorvit.rng import generator
from tailorvit.space import Space
from tailorvit.tensors import safetensors_shapes
from tailorvit.texts import parse_json, parse_toml
from tailorvit.tiny import tiny

CASES = int(os.environ.get("TAILORVIT_CASES", "60"))
many = settings(
    max_examples=CASES,
    deadline=None,
    suppress_health_check=list(HealthCheck),
    derandomize="TAILORVIT_CASES" not in os.environ,  # CI tries the same sample every time
    database=None,
)

WORDS = st.sampled_from(
    ["", "auto", "none", "vit", "digits", "s4", "5M", "12ms", "-1", "nan", "../x", "a\x00b", "é\x1b"]
)
NUMBERS = st.one_of(
    st.integers(-3, 5000),
    st.sampled_from([0, 1, -1, 2**31, 2**63, 10**18, 10**49, -(10**49)]),
    st.floats(allow_nan=True, allow_infinity=True),
)
SCALARS = st.one_of(st.none(), st.booleans(), NUMBERS, WORDS, st.text(max_size=8))
VALUES = st.recursive(
    SCALARS, lambda v: st.one_of(st.lists(v, max_size=4), st.dictionaries(WORDS, v, max_size=3)), max_leaves=6
)


def places(data, way=()):
    """Every place in nested plain data."""
    rows = data.items() if isinstance(data, dict) else enumerate(data) if isinstance(data, list) else ()
    for key, value in rows:
        yield (*way, key)
        yield from places(value, (*way, key))


@st.composite
def changed(draw, kinds):
    """One of some plain data with a few places changed, removed or added."""
    data = deepcopy(draw(st.sampled_from(kinds)))
    for _ in range(draw(st.integers(1, 3))):
        ways = list(places(data))
        if not ways:
            break
        way = draw(st.sampled_from(ways))
        where = data
        for step in way[:-1]:
            where = where[step]
        act = draw(st.integers(0, 9))
        if act == 0:
            del where[way[-1]]
        elif act == 1 and isinstance(where, dict):
            where[draw(WORDS)] = draw(VALUES)
        else:
            where[way[-1]] = draw(VALUES)
    return data


def attempt(work):
    """The answer, or None where it is refused in one sentence; any other error is the test's."""
    try:
        return work()
    except TailorError as error:
        assert str(error).strip() and len(str(error)) < 20_000
        return None


RECIPES = [read_recipe(name) for name in recipe_names()]
WHOLE = parse_json(json.dumps(parse_toml(__import__("tailorvit.config", fromlist=["to_toml"]).to_toml(Config()))))


@many
@given(changed([*RECIPES, WHOLE]))
def test_recipes(data):
    config = attempt(lambda: configure(data))
    assert config is None or isinstance(config, Config)


@many
@given(st.sampled_from(recipe_names()), st.lists(st.tuples(st.sampled_from(list(places(WHOLE))), VALUES), max_size=3))
def test_settings_given_by_hand(name, changes):
    pairs = {".".join(map(str, way)): value for way, value in changes}
    attempt(lambda: recipe_for(name, settings=pairs))
    attempt(lambda: tiny(read_recipe(name) | overrides(pairs), own_data=True))


SPACES = [s.to_dict() for f in FAMILIES.working() for s in list(f.spaces.values())[-1:]]


@many
@given(changed(SPACES))
def test_spaces(data):
    def work():
        space = with_settings(Space.from_dict(data))
        meter = Meter.for_space(space, Limits.of(max_params="5M"))
        rng = generator(0, "trust")
        arch = space.mutate(space.cross(space.sample(rng), space.smallest(), rng), rng)
        assert space.contains(arch) and space.count() >= 1
        return meter.fits(arch), Space.from_dict(space.to_dict()) == space

    attempt(work)


ARCHS = [(f.name, dict(a.arch.to_dict()), dict(a.settings)) for f in FAMILIES.working() for a in f.archs.values()]
GENES = [
    {"name": n, "genes": g, "settings": {k: list(v) if isinstance(v, tuple) else v for k, v in s.items()}}
    for n, g, s in ARCHS
]


@many
@given(changed(GENES))
def test_architectures(data):
    def work():
        if not isinstance(data.get("genes"), dict) or not isinstance(data.get("settings"), dict):
            return None
        record = family(str(data.get("name")))
        return Counter(record.name, data["settings"]).both(record.arch(data["genes"]))

    attempt(work)


ROWS = [[{"family": "vit", "embed": 192, "heads": [3, 3], "mlp": [4, 4], "depth": 2, "acc": 70.0, "params": 5}] * 3]


@many
@given(changed(ROWS))
def test_tables(rows):
    if rows and isinstance(rows[0], dict):
        attempt(lambda: table_of("a table", rows))


@pytest.fixture(scope="session")
def network(base, tmp_path_factory):
    return shutil.copytree(base / "network", tmp_path_factory.mktemp("card") / "network")


@many
@given(data=st.data())
def test_cards(network, base, data):
    card = data.draw(changed([json.loads((base / "network" / "network.json").read_text())]))
    (network / "network.json").write_text(json.dumps(card))
    attempt(lambda: load(network))


@many
@given(st.one_of(st.text(max_size=40), st.text("[]{}\"\\=.,:0123456789eE-ntf'#\n ", max_size=60)))
def test_texts(text):
    for parse in (parse_json, parse_toml):
        try:
            parse(text)
        except ValueError as error:
            assert str(error)


def bytes_of(form):
    file = io.BytesIO()
    Image.new("RGB" if form != "GIF" else "P", (9, 7)).save(file, form)
    return file.getvalue()


FORMS = [bytes_of(form) for form in ("PNG", "JPEG", "GIF", "BMP", "TIFF", "WEBP", "PPM")]


@many
@given(
    st.sampled_from(FORMS),
    st.lists(st.tuples(st.integers(0, 400), st.integers(0, 255)), max_size=4),
    st.integers(0, 400),
)
def test_images(raw, changes, length):
    raw = bytearray(raw)
    for at, value in changes:
        raw[at % len(raw)] = value
    how = Preprocessing((8, 8), 3, (0.5,) * 3, (0.5,) * 3)
    attempt(lambda: prepare(io.BytesIO(bytes(raw[:length] if length else raw)), how))


@many
@given(st.binary(max_size=64), st.integers(0, 80))
def test_headers_of_weight_files(tmp_path_factory, raw, length):
    path = tmp_path_factory.getbasetemp() / "header.safetensors"
    path.write_bytes(length.to_bytes(8, "little") + raw)
    try:
        safetensors_shapes(path)
    except ValueError as error:
        assert str(error)


COMMANDS = [
    ["space", "vit-8px", "--classes", "10", "--image-size", "8", "--max-params", "50k"],
    ["cost", "deit-ti", "--classes", "10", "--image-size", "224", "--batch", "1"],
    [
        "score",
        "vit-8px",
        "--n",
        "1",
        "--seed",
        "0",
        "--image-size",
        "8",
        "--batch",
        "1",
        "--inits",
        "1",
        "--proxy",
        "dss",
    ],
    ["list", "spaces"],
    ["runs", "nowhere"],
    ["doctor", "nowhere"],
    ["resume", "nowhere", "--data", "digits"],
    ["report", "nowhere"],
    ["export", "nowhere", "--to", "onnx"],
    ["import", "nowhere.pth", "--as", "deit-ti", "--image-size", "224"],
    ["predict", "nowhere", "images", "--top", "3"],
    ["rank", "nowhere.json", "--proxy", "dss", "--seeds", "1", "--band", "5%"],
    ["run", "nowhere.toml", "--data", "digits", "--max-params", "1M", "--budget", "5m", "--seed", "1", "--plan"],
]
TEXTS = st.one_of(
    WORDS.filter(lambda w: "\0" not in w), NUMBERS.map(str), st.text("0123456789-+.eEmMkKGi%,:=/ ", max_size=10)
)


@many
@given(data=st.data())
def test_command_lines(capsys, monkeypatch, tmp_path_factory, data):
    monkeypatch.chdir(tmp_path_factory.getbasetemp())
    command = list(data.draw(st.sampled_from(COMMANDS)))
    for _ in range(data.draw(st.integers(0, 2))):
        at = data.draw(st.integers(1, len(command) - 1))
        command[at] = data.draw(TEXTS)
    if command[0] == "score":  # a sample of the values, not hours of scores
        command = [word if not word.isdigit() or int(word) < 100 else "100" for word in command]
    code, _, err = called(capsys, *command)
    assert code in (0, 2), (command, code, err)
    assert "Traceback" not in err
    assert code == 0 or err.startswith(("tailorvit: ", "Usage: ")), (command, err)
    assert not err.startswith("tailorvit: ") or err.count("\n") == 1, (command, err)
