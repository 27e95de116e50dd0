"""Configurations: reading, overrides, errors, writing and reading back."""

import dataclasses
import math
from pathlib import Path

import hypothesis
import hypothesis.strategies as st
import pytest

from hpcgnn.config.config import (
    Config,
    GraphConfig,
    RunConfig,
)
from hpcgnn.config.file import (
    config_from_tables,
    config_of,
    describe_keys,
    dump_toml,
    load_config,
)
from hpcgnn.config.run_features import unread
from hpcgnn.config.training import TrainConfig
from hpcgnn.errors import InputError

NEEDED = ["graph.store=g.h5", "run.dir=out"]


def test_defaults_and_overrides(tmp_path: Path) -> None:
    file = tmp_path / "run.toml"
    file.write_text('[model]\nname = "gcn"\nhidden = 16\n[train]\nseeds = [3, 1]\n')
    config = load_config(
        file, [*NEEDED, "model.hidden=32", "train.learning_rate=1", "train.seeds=[0, 7]"]
    )
    assert config.model.name == "gcn"
    assert config.model.hidden == 32
    assert config.train.learning_rate == 1.0
    assert isinstance(config.train.learning_rate, float)
    assert config.train.seeds == (0, 7)
    assert config.graph.store == "g.h5"
    assert config.model.dropout == 0.5


@pytest.mark.parametrize(
    ("override", "message"),
    [
        ("model.hiden=3", r"unknown key: 'model.hiden'; did you mean 'model.hidden'\?"),
        ("modle.hidden=3", r"unknown section: 'modle'; did you mean 'model'\?"),
        ("train.lr=0.1", r"unknown key: 'train.lr'; did you mean 'train.learning_rate'\?"),
        ("model.a.b=3", r"unknown key: 'model.a.b'; choose one of activation, "),
        (
            "hidden=3",
            r"override 'hidden=3': write model.hidden=3 or edges.hidden=3 or programs.hidden=3$",
        ),
        ("model=3", r"override 'model=3': write model.name=3$"),
    ],
)
def test_unknown_names_are_told_the_near_one_or_all(override: str, message: str) -> None:
    with pytest.raises(InputError, match=message):
        load_config(None, [*NEEDED, override])


@pytest.mark.parametrize(
    ("override", "message"),
    [
        ("model.hidden=abc", "model.hidden = 'abc': expected a whole number"),
        ("model.hidden=1.5", "model.hidden = 1.5: expected a whole number"),
        ("model.hidden=true", "model.hidden = True: expected a whole number"),
        ("model.dropout=true", "model.dropout = True: expected a number"),
        ("fields.valid=.2", "fields.valid = '.2': expected a number such as 0.5"),
        ("model.residual=1", "model.residual = 1: expected true or false"),
        ("train.seeds=[1, 'x']", "train.seeds = 'x': expected a whole number"),
        ("graph.relations=3", "graph.relations = 3: expected text"),
        ("model.name=[1]", "model.name = .1.: expected text"),
    ],
)
def test_wrong_types(override: str, message: str) -> None:
    with pytest.raises(InputError, match=message):
        load_config(None, [*NEEDED, override])


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        (["model.hops=3"], "model.hops = 3: sage has no such option; .* mixhop or appnp"),
        (["model.name=appnp", "model.norm=batch"], "model.norm = 'batch': appnp has no such"),
        (["model.name=gcn", "model.edge_features=true"], "gcn has no such option; .* sage or gat"),
        (["model.name=hgt", "model.heads=3"], "model.heads = 3: .* model.hidden = 128"),
        (["model.name=mixhop", "model.hidden=2"], "model.hidden = 2: .* use at least 3"),
    ],
)
def test_options_that_a_model_does_not_heed(overrides: list[str], message: str) -> None:
    with pytest.raises(InputError, match=message):
        load_config(None, [*NEEDED, *overrides])


@pytest.mark.parametrize(
    "override",
    [
        "model.hidden=0",
        "model.num_layers=0",
        "model.dropout=1",
        "model.dropout=-0.1",
        "model.dropout=nan",
        "model.input_dropout=inf",
        "model.name=gat2",
        "model.norm=instance",
        "model.activation=sine",
        "model.jumping=lstm",
        "model.heads=0",
        "model.hops=-1",
        "model.num_bases=-1",
        "model.teleport=1.5",
        "model.edge_dropout=1",
        "train.epochs=0",
        "train.evaluate_every=0",
        "train.seeds=[]",
        "train.seeds=[1, 1]",
        "train.seeds=[-1]",
        "train.optimizer=lion",
        "train.learning_rate=0",
        "train.learning_rate=nan",
        "train.learning_rate=inf",
        "train.weight_decay=-1",
        "train.weight_decays=['*bias']",
        "train.weight_decays=['=1']",
        "train.weight_decays=['*=-1']",
        "train.weight_decays=['*=nan']",
        "train.momentum=inf",
        "train.nesterov=true",
        "train.schedule=triangle",
        "train.schedule_gamma=0",
        "train.schedule_gamma=1.5",
        "train.warmup_epochs=-1",
        "train.clip_norm=-1",
        "train.label_smoothing=1",
        "train.patience=-1",
        "train.select=first",
        "train.dtype=float16",
        "graph.store=''",
        "graph.normalize_features=max",
        "links.valid=1",
        "links.test=1",
        "exchange.method=telepathy",
        "exchange.replication=0",
        "exchange.schedule=lazy",
        "exchange.prefetch=1",
        "run.dir=''",
        "run.resume=perhaps",
        "run.checkpoint_every=-1",
        "run.keep_checkpoints=0",
        "run.threads=-1",
        "run.stall_s=-1",
        "run.stall_s=0.5",
        "run.stall_s=inf",
    ],
)
def test_out_of_range(override: str) -> None:
    key = override.partition("=")[0]
    with pytest.raises(InputError, match=rf"^{key} = .*: "):
        load_config(None, [*NEEDED, override])


def test_a_key_of_earlier_versions_is_accepted_at_its_default() -> None:
    kept = load_config(None, [*NEEDED, "train.weight_decay_layers=all"])
    assert kept == load_config(None, NEEDED)
    with pytest.raises(InputError, match=r"no longer a key: write .* train.weight_decays="):
        load_config(None, [*NEEDED, "train.weight_decay_layers=first"])


def test_stages_without_steps_are_possible() -> None:
    none = [f"correct_and_smooth.{stage}_steps=0" for stage in ("correct", "smooth")]
    assert load_config(None, [*NEEDED, *none]).correct_and_smooth.smooth_steps == 0


def test_names_that_no_file_can_hold() -> None:
    with pytest.raises(InputError, match=r"run.dir = 'out.udcff': is not valid UTF-8"):
        load_config(None, ["graph.store=g.h5", "run.dir=out\udcff"])


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("[model\n", r"run.toml is not valid TOML: .*line 1"),
        ("[model]\nhidden = \n", r"not valid TOML: .*line 2"),
        ("[model]\nhidden = 1\nhidden = 2\n", r"not valid TOML"),
        ("[train]\nseeds = " + "[" * 5000, r"not valid TOML: maximum recursion"),
        ("model = 3\n", r"model must be a table, \[model\], not 3"),
        ("[[model]]\nhidden = 3\n", r"model must be a table"),
        ("hidden = 3\n", r"unknown section: 'hidden'"),
    ],
)
def test_broken_files(tmp_path: Path, text: str, message: str) -> None:
    file = tmp_path / "run.toml"
    file.write_text(text)
    with pytest.raises(InputError, match=message):
        load_config(file, NEEDED)


def test_override_of_a_scalar_section(tmp_path: Path) -> None:
    file = tmp_path / "run.toml"
    file.write_text("model = 3\n")
    with pytest.raises(InputError, match=r"run.toml: model must be a table"):
        load_config(file, [*NEEDED, "model.hidden=3"])


def test_unreadable_files(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"none.toml: No such file"):
        load_config(tmp_path / "none.toml")
    with pytest.raises(InputError, match=r"is a directory; a run directory has "):
        load_config(tmp_path)
    (tmp_path / "bytes.toml").write_bytes(b"\xff\xfe")
    with pytest.raises(InputError, match=r"bytes.toml is not valid TOML"):
        load_config(tmp_path / "bytes.toml")


def test_missing_necessities() -> None:
    with pytest.raises(InputError, match=r"graph.store = '': give the path of a store"):
        load_config(None, ["run.dir=x"])
    with pytest.raises(InputError, match=r"run.dir = '': give a directory"):
        load_config(None, ["graph.store=x"])


TEXT = st.text(min_size=1).filter(lambda text: text.isprintable() or "\x7f" in text or "\n" in text)
RATE = st.floats(min_value=1e-300, max_value=1e30)


@hypothesis.given(store=TEXT, directory=TEXT, rate=RATE, relations=st.lists(TEXT))
def test_round_trip(store: str, directory: str, rate: float, relations: list[str]) -> None:
    config = Config(
        graph=GraphConfig(store=store, relations=tuple(relations)),
        train=TrainConfig(learning_rate=rate, seeds=(3, 5), nesterov=True, optimizer="sgd"),
        run=RunConfig(dir=directory),
    )
    import tomllib

    assert config_from_tables(tomllib.loads(dump_toml(config))) == config


def test_keys_are_described() -> None:
    keys = describe_keys()
    assert all(meaning for _, _, meaning in keys)
    fields = [
        f"{section.name}.{each.name}"
        for section in dataclasses.fields(Config)
        for each in dataclasses.fields(section.type)  # type: ignore[arg-type]
    ]
    assert [key for key, _, _ in keys] == fields
    assert math.isclose(float({key: text for key, text, _ in keys}["train.momentum"]), 0.9)


def test_a_byte_order_mark_is_no_part_of_the_text(tmp_path: Path) -> None:
    path = tmp_path / "c.toml"
    path.write_text('[graph]\nstore = "g.h5"\n[run]\ndir = "r"\n', encoding="utf-8-sig")
    assert load_config(path).graph.store == "g.h5"


@pytest.mark.parametrize(
    "word", ["links.margin=2.0", "sampling.halo=2", "sampling.reshuffle_epochs=1"]
)
def test_options_without_an_effect_are_refused(word: str) -> None:
    key = word.partition("=")[0]
    with pytest.raises(InputError, match=key):
        load_config(None, [*NEEDED, word])


@pytest.mark.parametrize(
    ("words", "told"),
    [
        ((), ""),
        (
            ("sampling.budget=9", "sampling.steps=2", "train.momentum=0.5"),
            "train.momentum (train.optimizer = 'adam'); sampling.budget, sampling.steps "
            "(train.task = 'full')",
        ),
        (("train.optimizer=sgd", "train.momentum=0.5"), ""),
        (("train.schedule_steps=[1]",), "train.schedule_steps (train.schedule = 'constant')"),
        (
            ("train.task=sampled", "sampling.walk_length=3"),
            "sampling.walk_length (sampling.sampler = 'frontier')",
        ),
        (("train.task=edges", "edges.sampled=true", "sampling.budget=9", "edges.hidden=3"), ""),
        (("train.task=full+links", "links.ranked=7", "links.ranking=all"), "links.ranked (links."),
        (("train.task=graphs", "sampling.ahead=2", "graphs.width=3"), ""),
        (("train.task=links", "fields.history=2"), "fields.history (train.task = 'links')"),
    ],
)
def test_options_without_effect_are_told(words: tuple[str, ...], told: str) -> None:
    found = unread(config_of(["graph.store=g.h5", "run.dir=r", *words]))
    assert found.startswith(f"without effect: {told}") if told else found == ""
