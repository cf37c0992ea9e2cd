"""Options that commands share are declared once, reach every command, and reach the specification."""

import inspect
from dataclasses import dataclass, fields

import pytest

from privbench import presets, spec
from privbench.cli import flattening, run_commands
from privbench.errors import UserError
from privbench.requests import specifications
from privbench.requests.options import AttackOptions, RunOptions, TrainingOptions

TRAINING = ("attack", "train", "search", "table", "study")


@dataclass(frozen=True)
class Sides:
    left: int = 1
    right: str = "a"


def test_a_group_of_options_becomes_one_parameter_per_field_and_comes_back_filled_in():
    seen = []

    def command(name: str, sides: Sides = Sides(left=7), more: bool = False) -> None:
        seen.append((name, sides, more))

    flat = flattening.flattened(command)
    parameters = inspect.signature(flat).parameters
    assert {n: p.default for n, p in parameters.items() if n != "name"} == {"left": 7, "right": "a", "more": False}
    assert parameters["left"].annotation is int
    flat(name="x", left=7, right="b", more=True)
    assert seen == [("x", Sides(7, "b"), True)]


@pytest.mark.parametrize("name", TRAINING)
def test_every_command_that_trains_takes_every_option_of_training(name):
    taken = inspect.signature(getattr(run_commands, name)).parameters
    assert {field.name for field in fields(TrainingOptions)} <= set(taken)
    if name in ("attack", "train", "search"):
        assert {field.name for field in fields(RunOptions)} <= set(taken)


def specification(run=None, **training):
    return specifications.train_spec(
        RunOptions(dataset="digits", **(run or {})), TrainingOptions(preset="smoke", **training)
    )


@pytest.mark.parametrize(
    ("settings", "field", "wanted"),
    [
        ({"rounds": 7}, "rounds", 7),
        ({"local_epochs": 3}, "local_epochs", 3),
        ({"generator_epochs": 4}, "generator_epochs", 4),
        ({"server_steps": 5}, "server_steps", 5),
        ({"batch": 6}, "batch", 6),
        ({"lr": 0.02}, "task", spec.Adam(lr=0.02, weight_decay=1e-4)),
        ({"schedule": ["patience=9"]}, "patience", 9),
        ({"schedule": ["client_steps=8"]}, "client_steps", 8),
        ({"schedule": ["keep_every=2"]}, "keep_every", 2),
        ({"schedule": ["task.lr=0.5", "task.kind=sgd"]}, "task", spec.SGD(kind="sgd", lr=0.5, weight_decay=1e-4)),
        ({"schedule": ["generator.beta1=0.9"]}, "generator", spec.Adam(lr=3e-4, beta1=0.9)),
        ({"schedule": ["server.weight_decay=0.1"]}, "server", spec.Adam(lr=3e-4, weight_decay=0.1)),
    ],
)
def test_a_setting_of_the_schedule_reaches_the_specification(settings, field, wanted):
    before, after = specification(), specification(**settings)
    assert getattr(after.schedule, field) == wanted != getattr(before.schedule, field)
    others = {name for name in spec.Schedule.model_fields if name != field}
    assert after.schedule.model_dump(include=others) == before.schedule.model_dump(include=others)
    assert after.id != before.id


def test_other_choices_reach_the_specification():
    assert specification(protocol="nfl-cgan").protocol == "nfl-cgan"
    assert specification(flip=False).flip is False
    assert specification(measured="broadcast").measured == "broadcast"
    assert specification({"set_": ["mu=0.5"], "method": "fedprox"}).method_settings == {"mu": 0.5}


def test_where_a_defence_acts_is_said_only_of_one_that_has_the_choice():
    run, training = RunOptions(dataset="digits"), TrainingOptions(preset="smoke", where="step")
    assert specifications.train_spec(run, training, "gaussian:1").where == "step"
    assert specifications.train_spec(run, training, "none") == specification()


def test_a_field_given_twice_is_refused():
    with pytest.raises(UserError, match="batch is given twice: by its own option and by --schedule"):
        TrainingOptions(batch=3, schedule=["batch=4"]).changes()


def test_what_is_searched_is_a_setting_of_the_method_or_else_of_the_schedule():
    run, training = RunOptions(method="fedprox", dataset="digits"), TrainingOptions(preset="smoke")
    assert specifications.train_spec(run, training, searched="mu=0.5").method_settings == {"mu": 0.5}
    assert specifications.train_spec(run, training, searched="task.lr=0.5").schedule.task.lr == 0.5
    assert specifications.train_spec(run, training, searched="batch=5").schedule.batch == 5
    with pytest.raises(UserError, match=r"neither FedProx nor a schedule has a 'task\.rl'; did you mean 'task\.lr'"):
        specifications.train_spec(run, training, searched="task.rl=0.5")


def test_the_seeds_are_those_from_the_first_on():
    def seeds(**settings):
        training = TrainingOptions(preset="quick", **settings)
        return [each.seed for each in specifications.train_specs(RunOptions(dataset="digits"), training)]

    assert seeds() == [100, 101]
    assert seeds(seeds=3) == [100, 101, 102]
    assert seeds(seeds=2, first_seed=7) == [7, 8]
    assert seeds(first_seed=0) == [0, 1]


def test_an_option_that_is_a_field_of_a_specification_is_unset_or_has_the_fields_default():
    groups = [(spec.TrainSpec, RunOptions()), (spec.TrainSpec, TrainingOptions()), (spec.CellSpec, AttackOptions())]
    compared = set()
    for kind, group in groups:
        for name, value in specifications.fields_of(kind, group).items():
            field = kind.model_fields[name]
            if value is not None and not field.is_required():
                assert value == field.default, name
                compared.add(name)
    assert compared >= {"backbone", "image_size", "where", "measured", "batch_size", "observe", "wire", "auxiliary"}


def test_a_name_that_is_no_field_of_a_specification_is_refused():
    with pytest.raises(UserError, match=r"^how: .*'iid' was given"):
        presets.train_spec("smoke", "digits", "fedavg", how="iid")
    with pytest.raises(UserError, match=r"^batchsize: .*2 was given"):
        presets.cell_spec("smoke", presets.train_spec("smoke", "digits", "fedavg"), "dlg", batchsize=2)
