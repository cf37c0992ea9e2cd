"""What a report says of the attacks that a ladder leaves out."""

from privbench import registry
from reports.records import remarks
from tests.builders.records import record

TRAINED = "Not among those on trained networks without a defence: "
UNTRAINED = "Not among those on untrained networks without a defence: "


def said(*records):
    return [line.partition(" `--attack")[0] for line in remarks.left_out(records, [])]


def test_attacks_without_a_record_are_named_and_those_of_untrained_networks_alone_apart():
    every = [record("fedsplit", attack=name, round_="0") for name in registry.ATTACKS]
    assert said(*every) == []
    (line,) = said(*every[1:])
    assert line == f"Not among the attacks: {every[0].attack}."
    trained = [record("fedsplit", attack=name) for name in registry.ATTACKS if name not in registry.NEVER_BEST_TRAINED]
    names = [name for name in registry.ATTACKS if name in registry.NEVER_BEST_TRAINED]
    assert said(*every, *trained) == [f"{TRAINED}{', '.join(names)}."]
    # Under a defence the ladder makes them of trained networks, which says nothing of those without.
    noised = [record("fedsplit", "gaussian:0.1", name) for name in names]
    assert said(*every, *trained, *noised) == [f"{TRAINED}{', '.join(names)}."]
    assert said(*every, *trained, *(record("fedsplit", attack=name) for name in names)) == []


def test_attacks_of_trained_networks_alone_are_named():
    trained = [record("fedsplit", attack=name) for name in registry.ATTACKS]
    untrained = [
        record("fedsplit", attack=name, round_="0")
        for name in registry.ATTACKS
        if name not in registry.NEVER_ABOVE_UNTRAINED
    ]
    names = [name for name in registry.ATTACKS if name in registry.NEVER_ABOVE_UNTRAINED]
    assert said(*trained) == []
    assert said(*trained, *untrained) == [f"{UNTRAINED}{', '.join(names)}."]


def test_a_shorter_preset_beside_the_published_one_is_named():
    quick, paper = record(), record(spec={"preset": "paper"})

    def told(*records):
        return [note for note in remarks.training_header(records) if remarks.NOT_PUBLISHED in note]

    assert told(paper) == []
    assert told(quick)[0].startswith("This is NOT")
    assert told(quick, paper)[0].startswith("Preset quick is NOT")


def test_the_paper_preset_is_not_called_published_for_a_method_whose_schedule_is_not_printed():
    def told(*records):
        return next(note for note in remarks.training_header(records) if remarks.NOT_PUBLISHED in note)

    gan, other = record("secure-gan"), record("fedcg")
    assert told(other).endswith("`--preset paper` runs the published settings.")
    assert told(gan).endswith("`--preset paper` runs SecureGAN at FedCG's schedule, as no other is printed.")
    assert "the published settings, SecureGAN at FedCG's schedule" in told(gan, other)
