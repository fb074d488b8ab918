"""The record of a run: every mistake is one sentence, every recipe reads back as it was written."""

from __future__ import annotations

from pathlib import Path

import pytest

from tailorvit.api import recipe_for
from tailorvit.config import (
    RETIRED,
    Config,
    configure,
    merged,
    modernised,
    overrides,
    parse_recipe,
    read_recipe,
    recipe_names,
    to_toml,
)
from tailorvit.errors import TailorError
from tailorvit.families import named_space
from tailorvit.search.evolution import PRESETS, EvolutionSettings
from tailorvit.search.random_search import RandomSettings
from tailorvit.space import Space
from tailorvit.tiny import tiny

recipes = pytest.mark.parametrize("name", recipe_names())


@pytest.mark.parametrize(
    ("data", "words"),
    [
        ({"methd": "s4"}, "Unknown recipe key 'methd'. Did you mean 'method'?"),
        ({"train": {"epoch": 3}}, "Unknown recipe key 'train.epoch'. Did you mean 'train.epochs'?"),
        ({"final": {"train": {"epoch": 3}}}, "Did you mean 'final.train.epochs'?"),
        ({"data": {"sorce": "x"}}, "Did you mean 'data.source'?"),
        ({"s4": {"pair": 3}}, "Did you mean 's4.pairs'?"),
        ({"evaluate": {"x": 3}}, "Unknown recipe key 'evaluate.x'"),
        ({"search": {"populaton": 3}}, "Did you mean 'search.population'?"),
        ({"search": {"name": "random", "population": 3}}, "Unknown recipe key 'search.population'"),
        ({"limits": {"max_param": "3M"}}, "Unknown limit 'max_param'"),
        ({"method": 3}, "method cannot be 3"),
        ({"seed": -1}, "seed must be a whole number from 0"),
        ({"seed": "a"}, "seed cannot be 'a'"),
        ({"seed": 2**31}, "seed must be"),
        ({"space": 5}, "space cannot be 5"),
        ({"arch": 5}, "arch cannot be 5"),
        ({"device": 3}, "device cannot be 3"),
        ({"baseline": "maybe"}, "baseline cannot be 'maybe'"),
        ({"prefer": "tiny"}, "prefer cannot be 'tiny': input should be 'accuracy' or 'small'"),
        ({"train": 5}, "'train' is a table of settings, not 5"),
        ({"final": 5}, "'final' is a table of settings, not 5"),
        ({"final": {"train": 5}}, "'final.train' is a table"),
        ({"train": {"epochs": "many"}}, "train.epochs cannot be 'many'"),
        ({"train": {"epochs": 1.5}}, "train.epochs cannot be 1.5"),
        ({"train": {"epochs": 0}}, "train.epochs must be above 0"),
        ({"train": {"lr": float("nan")}}, "train.lr must be a finite number"),
        ({"train": {"rule": "x"}}, "train.rule cannot be 'x': input should be 'single_path' or 'sandwich'"),
        ({"train": {"freeze": "x"}}, "'none', 'tensor' or 'slice'"),
        ({"train": {"drop_path": 1}}, "train.drop_path must be below 1"),
        ({"final": {"how": "x"}}, "'inherit', 'finetune' or 'retrain'"),
        ({"final": {"candidates": -1}}, "final.candidates must be 0 (choose by the data) or more"),
        ({"evaluate": {"batch": 0}}, "evaluate.batch must be at least 1"),
        ({"data": {"search_share": 2}}, "data.search_share"),
        ({"data": {"image_size": "big"}}, "data.image_size cannot be 'big'"),
        ({"data": {"image_size": [1, 2, 3]}}, "data.image_size cannot be [1, 2, 3]"),
        ({"s4": {"pairs": 1}}, "s4.pairs must lie between 2 and"),
        ({"s4": {"repair": "x"}}, "'steps', 'slope' or 'size'"),
        ({"limits": "5M"}, "limits cannot be '5M'"),
        ({"limits": {"max_params": "3Q"}}, "Cannot read '3Q' as a limit on params"),
        ({"limits": {"max_params": [1]}}, "limits.max_params cannot be [1]"),
        ({"limits": {"max_params": 0}}, "above zero"),
        ({"limits": {"max_params": "5M", "min_params": "6M"}}, "min_params 6M lies above max_params 5M"),
        ({"search": "evolution"}, "search cannot be 'evolution'"),
        ({"search": {"name": "evolutoin"}}, "Did you mean 'evolution'?"),
        ({"search": {"population": -1}}, "'population' must be at least 1"),
        ({"search": {"population": "x"}}, "search.population cannot be 'x'"),
        (
            {"search": {"preset": "nope"}},
            "'nope': input should be 'fixed', 'paper' or 'official'",
        ),
        ({"search": {"preset": [1]}}, "search.preset cannot be [1]"),
        ({"search": {"name": "random", "preset": "paper"}}, "Unknown recipe key 'search.preset'"),
    ],
    ids=str,
)
def test_every_mistake_is_one_sentence(data, words):
    with pytest.raises(TailorError) as caught:
        configure(data)
    text = str(caught.value)
    assert words in text and "\n" not in text and text.endswith(".")
    assert not any(noise in text for noise in ("pydantic", "function-", ".str ", ".int ", "http"))


def test_defaults_are_a_config():
    config = configure({})
    assert isinstance(config, Config) and config.method == "s4" and not config.budget()
    with pytest.raises(AttributeError):
        config.seed = 3


# -- overrides --------------------------------------------------------------------------------------------------------


def test_overrides_are_read_as_toml_or_text():
    found = overrides(
        [
            "train.epochs=50",
            "train.lr=1e-3",
            "limits.max_params=5M",
            "baseline=false",
            "data.image_size=[8, 16]",
            "a=b=c",
        ]
    )
    assert found == {
        "train": {"epochs": 50, "lr": 1e-3},
        "limits": {"max_params": "5M"},
        "baseline": False,
        "data": {"image_size": [8, 16]},
        "a": "b=c",
    }
    assert overrides([" train.epochs = 4"]) == {"train": {"epochs": 4}}
    assert overrides(['device="cpu"']) == {"device": "cpu"} == overrides(["device=cpu"])
    assert overrides(["seed=1", "seed=2"]) == {"seed": 2}, "the last one counts"
    assert overrides([]) == {} == overrides({})
    assert overrides({"train.epochs": 4, "train.lr": 1e-3, "space": {"name": "vit-8px"}}) == {
        "train": {"epochs": 4, "lr": 1e-3},
        "space": {"name": "vit-8px"},
    }, "a mapping's values are taken as they are"


@pytest.mark.parametrize("pair", ["train.epochs", "=3", " =3", ""])
def test_overrides_that_cannot_be_read(pair):
    with pytest.raises(TailorError, match=r"Cannot read --set '.*'; write it like train\.epochs=50\."):
        overrides([pair])


def test_merged_goes_table_by_table_and_changes_nothing_in_place():
    base = {"train": {"epochs": 1, "lr": 2}, "seed": 0}
    assert merged(base, {"train": {"epochs": 5}, "x": {"y": 1}}) == {
        "train": {"epochs": 5, "lr": 2},
        "seed": 0,
        "x": {"y": 1},
    }
    assert base == {"train": {"epochs": 1, "lr": 2}, "seed": 0}
    assert merged({"a": {"b": 1}}, {"a": 2}) == {"a": 2}


# -- inheritance and presets ------------------------------------------------------------------------------------------


def test_the_last_training_starts_from_the_first():
    config = configure({"train": {"epochs": 7, "lr": 0.5}, "final": {"train": {"epochs": 9}}})
    assert (config.final.train.epochs, config.final.train.lr) == (9, 0.5)
    assert configure({"train": {"batch": 3}}).final.train.batch == 3
    assert configure({"final": {"train": {"batch": 3}}}).train.batch == 128


def test_search_presets():
    official = configure({"search": {"preset": "official", "population": 30, "crossover": 10, "mutation": 10}})
    assert official.search_settings() == EvolutionSettings(population=30, crossover=10, mutation=10, preset="official")
    for name in PRESETS:
        assert configure({"search": {"preset": name}}).search_settings() == EvolutionSettings(preset=name)
    assert configure({"search": {}}).search_settings() == EvolutionSettings()
    assert isinstance(configure({"search": {"name": "random"}}).search_settings(), RandomSettings)


# -- recipes ----------------------------------------------------------------------------------------------------------


def test_there_are_recipes():
    assert {"s4-digits", "image-folder"} <= set(recipe_names())


@recipes
def test_recipes_round_trip(name):
    config = configure(read_recipe(name))
    again = configure(parse_recipe(to_toml(config), name))
    assert again == config
    assert to_toml(again) == to_toml(config)


@recipes
@pytest.mark.parametrize("own_data", [False, True])
def test_the_tiny_form_of_every_recipe_configures(name, own_data):
    full = read_recipe(name)
    config, whole = configure(tiny(full, own_data)), configure(full)
    assert config.method == whole.method and config.train.rule == whole.train.rule
    assert config.search.get("name", "evolution") == whole.search.get("name", "evolution")
    assert config.train.epochs <= 2 and config.final.train.epochs <= 2 and config.s4.iterations <= 2
    assert config.device == "cpu" and config.data.limit == (100 if whole.method == "contest" else 400)
    assert (config.data.source == "digits") or own_data
    assert configure(parse_recipe(to_toml(config), name)) == config


def test_recipes_by_path(tmp_path):
    path = tmp_path / "mine.toml"
    path.write_text("seed = 3\n[train]\nepochs = 4\n")
    assert read_recipe(str(path)) == {"seed": 3, "train": {"epochs": 4}}
    assert read_recipe("recipes/s4-digits.toml") == read_recipe("s4-digits"), "as the documentation writes it"


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("s4-digit", "Unknown recipe 's4-digit'. Did you mean 's4-digits'?"),
        ("nowhere/mine.toml", "There is no recipe file 'nowhere/mine.toml'."),
        (".", "Unknown recipe '.'."),
    ],
)
def test_recipes_that_are_not_there(name, words, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(TailorError) as caught:
        read_recipe(name)
    assert words in str(caught.value)


def test_a_folder_named_like_a_recipe_does_not_hide_it(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "s4-digits").mkdir()  # tailorvit run s4-digits --out s4-digits
    assert read_recipe("s4-digits")["method"] == "s4"


def test_broken_toml_and_broken_text(tmp_path):
    path = tmp_path / "mine.toml"
    path.write_text("seed = = 3")
    with pytest.raises(TailorError, match=r"mine\.toml' is not valid TOML"):
        read_recipe(str(path))
    path.write_bytes(b"seed = 3 # \xff\xfe")
    with pytest.raises(TailorError, match=r"mine\.toml"):
        read_recipe(str(path))


@pytest.mark.parametrize(("name", "key"), [("nsga2", "population"), ("random", "budget")])
def test_another_searcher_leaves_the_settings_of_the_recipes_own_behind(name, key):
    for recipe in (None, "autoformer-digits"):
        config = recipe_for(recipe, settings=[f"search.name={name}", f"search.{key}=7"])
        assert config.search == {"name": name, key: 7} and getattr(config.search_settings(), key) == 7
    assert recipe_for(None, settings=["search.name=evolution"]).search["parents"] > 0, "the same one keeps them"


def test_the_tiny_form_keeps_images_of_ones_own_however_they_are_named(tmp_path):
    mine = tmp_path / "mine.toml"
    mine.write_text('[data]\nsource = "photos"\n[limits]\nmax_params = "60k"\n')
    ways = [(str(mine), {}), ("s4-digits", {"data": "photos"}), ("s4-digits", {"settings": ["data.source=photos"]})]
    for recipe, options in ways:
        assert recipe_for(recipe, tiny=True, **options).data.source == "photos"
    assert recipe_for(str(mine), tiny=True).limits == {"max_params": "60k"}
    assert recipe_for("s4-vit-cifar10", tiny=True).data.source == "digits"


def test_a_table_that_is_none_is_named_in_the_tiny_form_too():
    for small in (False, True):
        with pytest.raises(TailorError, match="'data' is a table of settings, not 'photos'"):
            recipe_for(None, settings=["data=photos"], tiny=small)
        with pytest.raises(TailorError, match=r"'?search'?"):
            recipe_for(None, settings=["search=nsga2"], tiny=small)


def test_data_may_be_a_path():
    assert recipe_for(data=Path("photos")).data.source == "photos"
    assert recipe_for(data=Path("digits")) == recipe_for(data="digits")


# -- recipes stored by older versions ---------------------------------------------------------------------------------

USED_BY = {"s4": {"method": "s4"}, "s3": {"method": "s3"}, "hat": {"method": "hat"}, "proxy": {"method": "tf-tas"}}
USED_BY["seek"] = {"method": "s4", "seek": {"evaluator": "dss"}}
PLACES = [(key, key) for key in RETIRED] + [(f"final.{key}", key) for key in RETIRED if key.startswith("train.")]


def stored(path: str, value: object) -> dict:
    """A recipe of a run that used the table of a key."""
    owner = path.removeprefix("final.").partition(".")[0]
    return merged(USED_BY.get(owner, {}), overrides({path: value}))


@pytest.mark.parametrize(("path", "key"), PLACES)
def test_a_retired_key_is_dropped_at_its_default_and_refused_otherwise(path, key):
    default = RETIRED[key]
    assert configure(modernised(stored(path, default), "0.1.0")) == configure(stored(path, default) | without(path))
    other = not default if isinstance(default, bool) else "other" if isinstance(default, str) else 7
    with pytest.raises(TailorError) as caught:
        modernised(stored(path, other), "0.1.0")
    text = str(caught.value)
    assert "TailorViT 0.1.0" in text and f"'{path}'" in text and text.endswith(".") and "\n" not in text
    with pytest.raises(TailorError, match="Unknown recipe key"):
        configure(stored(path, default))


def without(path: str) -> dict:
    """The table of a key as it is today, in a recipe that uses it."""
    table = path.removeprefix("final.").partition(".")[0]
    return {"final": {}} if path.startswith("final.") else {table: USED_BY.get(table, {}).get(table, {})}


def test_every_retired_key_had_an_owner_that_is_still_there():
    today = configure({})
    for key in RETIRED:
        table, _, name = key.partition(".")
        assert not hasattr(getattr(today, table), name), key


@pytest.mark.parametrize("path", ["s4.momentum", "s3.estimator", "hat.quantile", "proxy.inits", "seek.samples"])
def test_a_retired_key_that_the_run_never_read_does_not_matter(path):
    """The tiny form of version 0.1 stored seek.samples = 12 with every run."""
    for method in ("autoformer", "fixed"):
        recipe = merged({"method": method}, overrides({path: 12}))
        assert configure(modernised(recipe, "0.1.0")) == configure({"method": method})
    assert configure(modernised({"method": "s4", "seek": {"samples": 12}}, "0.1.0")) == configure({"method": "s4"})


@pytest.mark.parametrize("key", ["p_depth", "per_gene", "elitist", "prefilter", "ask"])
def test_retired_keys_of_searchers_are_refused(key):
    with pytest.raises(TailorError, match=rf"TailorViT 0\.1\.0 and uses 'search\.{key}', which later versions"):
        modernised({"search": {"name": "evolution", key: 0.3}}, "0.1.0")


def test_learning_rates_scaled_by_the_batch_are_written_out():
    old = {
        "train": {"lr": 1e-3, "batch": 256, "lr_scaling": "batch512"},
        "final": {"train": {"lr": 2e-3, "batch": 1024}},
    }
    old["final"]["train"]["lr_scaling"] = "batch512"
    config = configure(modernised(old, "0.1.0"))
    assert (config.train.lr, config.final.train.lr) == (0.5e-3, 4e-3)
    old["train"]["lr_scaling"] = old["final"]["train"]["lr_scaling"] = "none"
    config = configure(modernised(old, "0.1.0"))
    assert (config.train.lr, config.final.train.lr) == (1e-3, 2e-3)


@pytest.mark.parametrize(
    ("old", "survey"),
    [
        ({"design": "pairs", "survey": 24}, 0),
        ({"design": "survey", "survey": 30}, 30),
        ({"design": "survey"}, 24),
        ({}, 0),
    ],
)
def test_designs_of_s4_become_the_size_of_the_survey(old, survey):
    assert configure(modernised({"method": "s4", "s4": old}, "0.1.0")).s4.survey == survey


def test_what_is_gone_with_its_name():
    with pytest.raises(TailorError, match=r"TailorViT 0\.1\.0 and uses 's4\.design'"):
        modernised({"method": "s4", "s4": {"design": "plane"}}, "0.1.0")
    assert configure(modernised({"method": "s3", "s4": {"design": "plane"}}, "0.1.0")).s4.survey == 0
    with pytest.raises(TailorError, match=r"TailorViT 0\.1\.0 and uses 'seek\.evaluator = 'tuned''"):
        modernised({"method": "s3", "seek": {"evaluator": "tuned"}}, "0.1.0")
    assert configure(modernised({"method": "fixed", "seek": {"evaluator": "tuned"}}, "0.1.0")).seek.by_supernet


def test_names_and_readings_become_one_proxy():
    for reading, name in (("fixed", "dss"), ("paper", "dss_paper"), ("official", "dss_official")):
        old = {
            "proxy": {"names": ["dss", "snip"], "reading": reading},
            "seek": {"evaluator": "dss", "reading": reading},
        }
        config = configure(modernised({"method": "tf-tas", **old}, "0.1.0"))
        assert (config.proxy.name, config.seek.evaluator) == (name, name)
    old = {"proxy": {"names": ["naswot"], "reading": "paper"}, "seek": {"evaluator": "supernet", "reading": "paper"}}
    config = configure(modernised({"method": "tf-tas", **old}, "0.1.0"))
    assert (config.proxy.name, config.seek.evaluator) == ("naswot", "supernet")


def test_a_space_of_an_older_recipe_is_the_same_space():
    space = named_space("vit-8px").to_dict()
    old = {**space, "fixed": space["settings"]}
    del old["settings"]
    assert (
        Space.from_dict(modernised({"space": old}, "0.1.0")["space"]) == Space.from_dict(space) == Space.from_dict(old)
    )
    assert "fixed" in old, "the recipe that was read stays as it is"


@recipes
def test_recipes_of_today_need_no_change(name):
    recipe = parse_recipe(to_toml(configure(read_recipe(name))), name)
    assert modernised(recipe, "0.2.0") == recipe


def test_the_patience_of_version_0_1_is_another_key_than_todays():
    assert configure(modernised({"train": {"patience": 5}}, "0.1.0")) == configure({})
    with pytest.raises(TailorError, match=r"TailorViT 0\.1\.0 and uses 'final\.train\.patience'"):
        modernised({"final": {"train": {"patience": 7}}}, "0.1.0")
    config = configure({"method": "fixed", "train": {"keep": "best", "patience": 3, "class_weights": "balanced"}})
    stored = parse_recipe(to_toml(config), "stored")
    assert stored["final"]["train"]["patience"] == 3
    assert configure(modernised(stored, "0.3.0")) == config
