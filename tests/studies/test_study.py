"""A setup, read and validated."""

from pathlib import Path

import pytest
from pydantic import ValidationError

from fedpace.errors import InputError
from fedpace.studies.build import split, stop_rule
from fedpace.studies.store import run_key
from fedpace.studies.study import ImagesSection, SyntheticSection, load_study, setups

SMALL = """
name = "small"
title = "A small one"

[data]
kind = "synthetic"

[pilots]
thresholds = [1.0]
rounds = 3

[stop]
rounds = 5
"""


def written(tmp_path: Path, text: str = SMALL) -> str:
    path = tmp_path / "study.toml"
    path.write_text(text, encoding="utf-8")
    return str(path)


@pytest.mark.parametrize("name", setups())
def test_every_setup_that_comes_along_is_valid_and_named_as_its_file(name: str) -> None:
    assert load_study(name).name == name


def test_simulation_1_is_the_papers() -> None:
    study = load_study("simulation-1")
    assert (study.training.k, study.training.local_steps, study.training.batch) == (10, 50, 24)
    assert study.training.schedule == "inverse:0.1"
    assert isinstance(study.data, SyntheticSection)
    assert (study.data.sizes, study.data.alpha, study.data.beta) == ("paper", 1, 1)
    assert study.devices.times == "exponential:1"
    assert study.paper["optimal-mean"] == 445.5


def test_a_file_gets_the_defaults_for_what_it_leaves_out(tmp_path: Path) -> None:
    study = load_study(written(tmp_path))
    assert study.training.k == 10
    assert study.training.clip is None
    assert study.pilots is not None
    assert study.pilots.thresholds == (1.0,)
    assert study.stop.loss is None


def test_pilots_may_be_left_out(tmp_path: Path) -> None:
    without = SMALL.replace("[pilots]\nthresholds = [1.0]\nrounds = 3\n", "")
    assert load_study(written(tmp_path, without)).pilots is None
    assert load_study("simulation-1", ["pilots=none"]).pilots is None


def test_a_study_says_how_it_learns_and_what_makes_its_models(tmp_path: Path) -> None:
    changes = ["sampling.warm_up=5", "sampling.refresh=20", "training.server=adam:0.01",
               "devices.known=false", "devices.spell=3.5"]  # fmt: skip
    study = load_study(written(tmp_path), changes)
    assert (study.sampling.warm_up, study.sampling.refresh) == (5, 20)
    assert study.training.server == "adam:0.01"
    assert (study.devices.known, study.devices.spell) == (False, 3.5)
    usual = load_study(written(tmp_path))
    assert (usual.sampling.warm_up, usual.sampling.refresh) == (None, None)
    assert (usual.training.server, usual.devices.known) == ("auto", True)


def test_a_study_cannot_be_changed(tmp_path: Path) -> None:
    study = load_study(written(tmp_path))
    with pytest.raises(ValidationError):
        study.training.k = 3


def test_overrides_are_read_as_toml_or_as_plain_text(tmp_path: Path) -> None:
    study = load_study(
        written(tmp_path),
        [
            "training.k=5",
            "data.alpha = 0.5",
            "sampling.oracle=true",
            "devices.times=uniform:0.2:7",
            'training.schedule="constant:0.1"',
            "pilots.thresholds=[2.0, 1.5]",
            "title=Another title",
            "paper.full=3.5",
        ],
    )
    assert study.training.k == 5
    assert isinstance(study.data, SyntheticSection)
    assert study.data.alpha == 0.5
    assert study.sampling.oracle is True
    assert study.devices.times == "uniform:0.2:7"
    assert study.training.schedule == "constant:0.1"
    assert study.pilots is not None
    assert study.pilots.thresholds == (2.0, 1.5)
    assert study.title == "Another title"
    assert study.paper == {"full": 3.5}


def test_the_last_override_of_a_field_counts(tmp_path: Path) -> None:
    assert load_study(written(tmp_path), ["training.k=5", "training.k=6"]).training.k == 6


def test_none_takes_a_field_back_to_its_default() -> None:
    assert load_study("simulation-1").data.seed == 12
    assert load_study("simulation-1", ["data.seed=none"]).data.seed is None
    assert load_study("simulation-1", ["training.clip=none"]).training.clip is None


@pytest.mark.parametrize(
    ("override", "message"),
    [
        ("training.local_step=5", r"'training\.local_step' is not .* mean 'local_steps'\?"),
        ("trianing.k=5", r"'trianing' is not a known section; did you mean 'training'\?"),
        ("sampling.max_wieght=2", r"'sampling\.max_wieght' is not .* mean 'max_weight'\?"),
        ("k=5", r"'k' is not a known field; "),
        ("data.zzzzzz=5", r"'data\.zzzzzz' is not a known field; use one of: kind, alpha"),
    ],
)
def test_an_unknown_field_is_refused_with_the_nearest(
    tmp_path: Path, override: str, message: str
) -> None:
    with pytest.raises(InputError, match=message):
        load_study(written(tmp_path), [override])


@pytest.mark.parametrize(
    "override",
    [
        "training.k=0", "training.k=2.5", "training.k=ten", "training.batch=-1",
        "training.clip=0", "training.clip=inf", "training.weight_decay=-1", "data.kind=images",
        "data.alpha=-1", "data.classes=1", "data.test_share=0", "data.test_share=1",
        "data.sizes=equal", "data.seed=-1", "devices.busy=1", "devices.busy_factor=0.5",
        "devices.period=0", "sampling.c_over_s0=-1", "sampling.max_weight=0",
        "sampling.oracle=perhaps", "pilots.thresholds=[]", "pilots.rounds=0", "stop.rounds=0",
        "stop.seconds=0", "model.kind=lenet", "training=5", "sampling.warm_up=0",
        "sampling.refresh=0", "sampling.refresh=2.5", "devices.spell=0", "devices.known=perhaps",
        "training.server=3", "devices.samples=0", "devices.megabits=-1",
    ],
)  # fmt: skip
def test_a_value_outside_its_range_is_refused_by_field_and_value(
    tmp_path: Path, override: str
) -> None:
    field, _, value = override.partition("=")
    with pytest.raises(InputError) as raised:
        load_study(written(tmp_path), [override])
    message = str(raised.value)
    assert f"'{field}' is " in message
    assert value.strip("[]") in message
    assert "\n" not in message


@pytest.mark.parametrize(
    "override",
    [
        "devices.noise=inf", "devices.noise=nan", "devices.drift=inf", "devices.busy_factor=inf",
        "data.alpha=nan", "data.alpha=inf", "data.beta=inf", "training.weight_decay=inf",
        "sampling.c_over_s0=inf", "pilots.thresholds=[nan]", "stop.loss=nan",
        "devices.samples=inf", "devices.megabits=nan",
    ],
)  # fmt: skip
def test_a_value_that_is_not_finite_is_refused(tmp_path: Path, override: str) -> None:
    with pytest.raises(InputError, match=override.partition("=")[0]):
        load_study(written(tmp_path), [override])


@pytest.mark.parametrize("override", ["training.k", "", "=5", "training.=5"])
def test_an_override_that_is_none_is_refused(tmp_path: Path, override: str) -> None:
    with pytest.raises(InputError, match=r"--set must be section\.field=value, got '.*'; see"):
        load_study(written(tmp_path), [override])


def test_an_override_below_a_field_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"'name' in 'name\.x=5' is no section; see the setup"):
        load_study(written(tmp_path), ["name.x=5"])


def test_a_study_that_would_never_end_is_refused() -> None:
    with pytest.raises(InputError, match="stop"):
        load_study("simulation-1", ["stop.loss=none", "stop.seconds=none"])


def test_a_missing_field_is_named(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"study\.toml: 'pilots\.rounds' is missing; see"):
        load_study(written(tmp_path, SMALL.replace("rounds = 3\n", "")))


def test_an_unknown_setup_is_refused_with_the_nearest() -> None:
    with pytest.raises(InputError, match=r"got 'simulaton-1'; did you mean 'simulation-1'\?"):
        load_study("simulaton-1")


def test_a_file_that_is_not_there_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"none\.toml: cannot be read: .*; give a TOML file"):
        load_study(str(tmp_path / "none.toml"))


@pytest.mark.parametrize("text", ["name = ", "[data\n", "a = 1\na = 2\n"])
def test_a_file_that_is_not_toml_is_refused(tmp_path: Path, text: str) -> None:
    with pytest.raises(InputError, match=r"study\.toml: is not TOML: .*; see the setups"):
        load_study(written(tmp_path, text))


def test_a_file_that_is_not_text_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "study.toml"
    path.write_bytes(b"\xff\xfe\x00")
    with pytest.raises(InputError, match="cannot be read"):
        load_study(str(path))


@pytest.mark.parametrize(
    ("name", "kind", "clients", "samples", "most", "times"),
    [
        ("simulation-2", "mnist", 100, 15129, 6, "exponential:1"),
        ("prototype-simulated", "emnist-lower", 40, 33036, 10, "uniform:0.187:7.159"),
    ],
)
def test_the_setups_on_images_are_the_papers(
    name: str, kind: str, clients: int, samples: int, most: int, times: str
) -> None:
    study = load_study(name)
    assert isinstance(study.data, ImagesSection)
    assert (study.data.kind, study.data.clients, study.data.samples) == (kind, clients, samples)
    assert (study.data.fewest_classes, study.data.most_classes) == (1, most)
    assert study.devices.times == times
    assert (study.training.local_steps, study.training.batch) == (50, 24)
    assert study.training.schedule == "inverse:0.1"
    assert study.training.k == clients // 10


@pytest.mark.parametrize(
    ("override", "message"),
    [
        ("data.kind=mnits", "'data.kind' is 'mnits'; did you mean 'mnist'?"),
        ("data.kind=none", "'data.kind' is missing; see the setups in fedpace"),
        ("data.alhpa=1", "'data.alhpa' is not a known field; did you mean 'alpha'?"),
        ("data.alpha=-1", "'data.alpha' is -1, not at least 0; set data.alpha=0"),
        (
            "training.local_steps=0",
            "'training.local_steps' is 0, not at least 1; set training.local_steps=1",
        ),
        ("training.schedule=0.1", "a rate needs a schedule; write constant:0.1"),
        ("data.kind=own", "'data.alpha' does not go with data.kind = own; write a .toml with"),
        ("data.pixels=unit", "'data.pixels' does not go with data.kind = synthetic; begin with"),
        ("model.kind=lenet5", "lenet5 takes images; set data.kind to mnist or emnist-lower"),
    ],
)
def test_what_does_not_fit_the_kind_of_data_is_refused(override: str, message: str) -> None:
    with pytest.raises(InputError) as caught:
        load_study("simulation-1", [override])
    assert message in str(caught.value)


def test_lenet_in_double_precision_is_refused() -> None:
    with pytest.raises(InputError, match=r"set model\.precision to single"):
        load_study("simulation-2", ["model.precision=double"])


def test_the_papers_other_target_does_not_change_a_runs_key() -> None:
    study = load_study("simulation-2")
    same = load_study("simulation-2", ["paper_loss=0.5", "title=x", "paper.full=1.0"])
    assert run_key(study, "uniform", 0) == run_key(same, "uniform", 0)


def test_work_that_is_as_usual_does_not_change_a_runs_key() -> None:
    same = load_study("simulation-1", ["devices.samples=1200", "devices.megabits=64"])
    assert run_key(same, "full", 0) == run_key(load_study("simulation-1"), "full", 0)
    other = load_study("simulation-1", ["devices.megabits=1"])
    assert run_key(other, "full", 0) != run_key(same, "full", 0)


def test_a_file_may_give_only_what_differs_from_a_setup(tmp_path: Path) -> None:
    text = 'base = "simulation-1"\nname = "mine"\ntitle = "Mine"\n[training]\nk = 3\n'
    study, base = load_study(written(tmp_path, text)), load_study("simulation-1")
    assert (study.name, study.training.k) == ("mine", 3)
    assert study.training.local_steps == base.training.local_steps
    assert study.model_copy(
        update={"name": base.name, "title": base.title, "training": base.training}
    ) == base  # fmt: skip


def test_the_prototype_is_the_simulated_one_but_for_its_name() -> None:
    one, other = load_study("prototype"), load_study("prototype-simulated")
    assert run_key(one, "uniform", 0) == run_key(other, "uniform", 0)


@pytest.mark.parametrize("base", ['"simulation"', '"../x.toml"', "3"])
def test_refuses_a_base_that_is_no_setup(base: str, tmp_path: Path) -> None:
    with pytest.raises(InputError, match="base must be a setup of fedpace"):
        load_study(written(tmp_path, f'base = {base}\nname = "mine"\n'))


def test_a_measured_run_is_another_than_the_simulated_one(tmp_path: Path) -> None:
    name = written(tmp_path)
    simulated = load_study(name)
    measured = load_study(name, ["network.how=paced"])
    scaled = load_study(name, ["network.how=paced", "network.time_scale=0.5"])
    keys = {run_key(study, "uniform", 0) for study in (simulated, measured, scaled)}
    assert len(keys) == 3


def test_own_data_cannot_be_drawn_here(tmp_path: Path) -> None:
    text = SMALL.replace('kind = "synthetic"', 'kind = "own"\nclients = 4')
    study = load_study(written(tmp_path, text))
    with pytest.raises(InputError, match="its data are held by its clients"):
        split(study, 0)


def test_a_limit_in_seconds_shrinks_with_the_time_scale(tmp_path: Path) -> None:
    scaled = ["stop.seconds=100", "network.how=paced", "network.time_scale=0.1"]
    assert stop_rule(load_study(written(tmp_path), scaled)).seconds == pytest.approx(10)
    assert stop_rule(load_study(written(tmp_path), ["stop.seconds=100"])).seconds == 100


@pytest.mark.parametrize(
    ("override", "problem"),
    [
        ("data.kind=own", "own data must have a source"),
        ("network.hwo=paced", "'network.hwo' is not a known field; did you mean 'how'"),
        ("network.time_scale=0", "'network.how' is missing"),
        ("network.how=teleport", "'network.how' is 'teleport'"),
    ],
)
def test_says_what_is_wrong_with_own_data_or_a_network(
    override: str, problem: str, tmp_path: Path
) -> None:
    text = SMALL.replace('kind = "synthetic"', 'kind = "own"') if "own" in override else SMALL
    with pytest.raises(InputError, match=problem):
        load_study(written(tmp_path, text), [override])


@pytest.mark.parametrize("field", ["training.take=3", "training.deadline=2.5"])
def test_a_round_cannot_end_early_where_there_is_none(field: str) -> None:
    with pytest.raises(InputError, match="take and deadline need rounds; set"):
        load_study("simulation-1", ["training.mode=asynchronous", field])
    assert load_study("simulation-1", [field]).training.mode == "synchronous"


@pytest.mark.parametrize("field", ["clients=6", "samples=9000", "smallest=3", "exponent=2"])
def test_a_size_that_the_papers_sizes_would_ignore_is_refused(field: str) -> None:
    named = field.replace("=", "' is ")
    with pytest.raises(InputError, match=rf"'data.{named}.*=power-law$"):
        load_study("simulation-1", [f"data.{field}"])
    sizes = load_study("simulation-1", [f"data.{field}", "data.sizes=power-law"])
    assert split(sizes, 0).train.n in (6, 100)


@pytest.mark.parametrize(("value", "remedy"), [("85", "give 0.85"), ("-1", "give 0.85 for 85 %")])
def test_an_accuracy_in_percent_is_refused_with_the_share(value: str, remedy: str) -> None:
    with pytest.raises(InputError, match=rf"'stop.accuracy' is {value}, not a share .*; {remedy}$"):
        load_study("simulation-1", [f"stop.accuracy={value}"])
    assert load_study("simulation-1", ["stop.accuracy=1"]).stop.accuracy == 1


def test_a_metric_that_is_no_share_may_have_any_target(tmp_path: Path) -> None:
    own = 'data = "a.py:data"\n[model]\nkind = "own"\nsource = "a.py:model"\nmetric = "mae"\n'
    study = load_study(written(tmp_path, f"{own}[stop]\nrounds = 5\naccuracy = 85\n"))
    assert study.stop.accuracy == 85


def test_a_misspelt_section_is_named_before_the_one_that_is_missing(tmp_path: Path) -> None:
    path = written(tmp_path, SMALL.replace("[stop]", "[stpo]"))
    with pytest.raises(InputError, match=r"'stpo' is not a known section; did you mean 'stop'\?"):
        load_study(path)


def test_a_file_may_leave_out_a_field_of_its_base(tmp_path: Path) -> None:
    late, base = load_study("prototype-late"), load_study("prototype-simulated")
    assert (late.sampling.max_weight, base.sampling.max_weight) == (None, 2.0)
    assert (late.data, late.training, late.pilots) == (base.data, base.training, base.pilots)
    text = 'base = "simulation-1"\nname = "mine"\n[sampling]\nmax_weight = "none"\n'
    assert load_study(written(tmp_path, text)).sampling.max_weight is None


def test_k_auto_is_the_k_of_the_warm_up_with_a_limit() -> None:
    training = load_study("simulation-1", ["training.k=auto", "training.k_max=16"]).training
    assert (training.k, training.k_max) == (4, 16)
    training = load_study("simulation-1", ["training.k=auto", "training.k_max=3"]).training
    assert (training.k, training.k_max) == (3, 3)
    with pytest.raises(InputError, match=r"k = auto needs a limit; set training\.k_max=16"):
        load_study("simulation-1", ["training.k=auto"])


def test_the_optimal_parts_of_a_link_need_rounds() -> None:
    overrides = ["devices.link=shared:20:optimal", "training.mode=asynchronous"]
    with pytest.raises(InputError, match=r"needs rounds; set training\.mode=synchronous"):
        load_study("simulation-1", overrides)
    assert load_study("simulation-1", overrides[:1]).devices.link == "shared:20:optimal"


def test_a_file_that_is_nested_too_deeply_is_one_line(tmp_path: Path) -> None:
    (tmp_path / "study.toml").write_text("x = " + "[" * 5000)
    with pytest.raises(InputError, match=r"study\.toml: is not TOML"):
        load_study(str(tmp_path / "study.toml"))
