"""The strongest attack is chosen on the other seeds and reported on each; of one seed on halves of the victims."""

from collections import Counter
from statistics import fmean

import numpy as np
import pytest

from reports.records import measured
from reports.tables import attack_table, report_files, sentences
from tests.builders.records import record, with_knowledge, with_psnr, with_victims

SEEDS = tuple(range(5))


def of(attack, psnr_db, seeds=SEEDS, victims=4):
    """An attack on FedSplit with the PSNR that a function gives of each victim."""
    attacked = record("fedsplit", attack=attack, seeds=seeds)
    return with_psnr(attacked, psnr_db).model_copy(update={"id": attack})


def test_halves_are_fixed_equal_and_balanced_over_seeds_and_clients():
    victims = record(seeds=SEEDS).victims
    half = measured.halves(victims)
    assert half == measured.halves(victims[::-1])
    assert Counter(half.values()) == {0: 10, 1: 10}
    for seed in SEEDS:
        assert Counter(half[v.name] for v in victims if v.seed == seed) == {0: 2, 1: 2}


def test_a_floor_is_no_attacker_where_there_are_attacks():
    floor, attack = of("class-mean", lambda v: 20.0), of("dlg", lambda v: 10.0)
    assert measured.strongest([floor, attack]).attacks == (attack,)
    assert measured.strongest([floor]).attacks == (floor,)


def test_one_image_of_two_clients_is_compared_with_itself():
    """Two clients hold the same image: a difference from itself is 0 for both."""
    plain = record(seeds=(0,))
    first, second = plain.victims[:2]
    twin = second.model_copy(update={"client": first.client + 1, "images": first.images, "psnr_db": first.psnr_db + 10})
    attacked = with_victims(plain, [first, twin])
    row = measured.of(attacked)
    assert measured.differences(row, row)[0] == [0.0, 0.0]


def test_one_picture_twice_lies_in_one_half():
    victims = record().victims
    twin = victims[3].model_copy(update={"psnr_db": 1.0})
    half = measured.halves([*victims, twin])
    assert len(half) == len(victims)
    assert half[twin.name] == half[victims[3].name]


def test_what_one_half_chooses_is_reported_on_the_other():
    """Of one seed. Each attack is strong on one half: either half chooses its own, and each is reported where it is weak."""
    half = measured.halves(record(seeds=(0,)).victims)
    first = of("dlg", lambda v: 30.0 if half[v.name] == 0 else 10.0, seeds=(0,))
    second = of("staged", lambda v: 30.0 if half[v.name] == 1 else 10.0, seeds=(0,))
    best = measured.strongest([first, second])
    assert best.name == "staged/dlg"
    assert [v.psnr_db for v in best.victims] == [10.0] * 4
    assert {v.name for v in best.victims} == {v.name for v in first.victims}
    assert best.scores.n == 4
    assert measured.best_record([first, second]).scores.psnr_db == 20.0  # which is what a maximum over all would say


def test_what_all_other_seeds_choose_is_reported_on_each():
    """One attack had luck with the networks of seed 0, where the others choose the second; the second is reported on all seeds."""
    lucky = of("dlg", lambda v: 30.0 if v.seed == 0 else 10.0)
    steady = of("staged", lambda v: 12.0)
    best = measured.strongest([lucky, steady])
    # Seeds 1 to 4 see what seed 0 gave the first: a mean of 15 over the four others. Seed 0 does not see it.
    assert best.name == "staged/dlg"
    assert {v.seed: v.psnr_db for v in best.victims} == {0: 12.0, 1: 10.0, 2: 10.0, 3: 10.0, 4: 10.0}


def test_where_an_attack_does_not_apply_another_stands_and_it_counts_where_it_does():
    """A server that sent honest networks to one seed knows it, and attacks that seed passively."""

    def crafted(applies):
        made = of("imprint", lambda v: 67.0 if applies(v) else 15.0)
        outcomes = [
            v.model_copy(update={"outcome": "reconstructed" if applies(v) else "not applicable"}) for v in made.victims
        ]
        return with_victims(made, outcomes).model_copy(update={"id": "imprint"})

    passive = of("staged", lambda v: 66.0)
    best = measured.strongest([crafted(lambda v: v.seed != 0), passive])
    assert {v.seed: v.psnr_db for v in best.victims} == {0: 66.0, 1: 67.0, 2: 67.0, 3: 67.0, 4: 67.0}
    # Where neither applies, as where none was made at all, the choice is that of all.
    never = crafted(lambda v: False)
    assert measured.strongest([never, passive]).attacks == (passive,)
    assert measured.strongest([never, never.model_copy(update={"id": "other"})]).scores.psnr_db == 15.0


def test_attacks_that_were_not_made_on_the_same_seeds_are_chosen_on_halves():
    first = of("dlg", lambda v: 12.0)
    second = of("staged", lambda v: 15.0, seeds=(0, 1))
    assert measured.strongest([first, second]).attacks == (second,)


def test_an_attack_that_is_stronger_everywhere_stands_by_itself():
    weak, strong = of("dlg", lambda v: 12.0 + v.client), of("staged", lambda v: 15.0 + v.client)
    best = measured.strongest([weak, strong])
    assert best.attacks == (strong,)
    assert best.psnr_db.mean == pytest.approx(strong.scores.psnr_db)


@pytest.mark.parametrize("luck", ["of victims", "of networks"])
def test_of_equally_strong_attacks_the_strongest_is_no_stronger(luck):
    """Twelve attacks of the same expectation: the maximum of their means flatters itself, the choice on other seeds does not."""
    rng = np.random.default_rng(0)
    maxima, chosen = [], []
    for _ in range(60):
        rivals = []
        for k in range(12):
            of_seed = rng.normal(0, 1, len(SEEDS)) if luck == "of networks" else np.zeros(len(SEEDS))
            rivals.append(of(f"attack-{k}", lambda v, of_seed=of_seed: 15.0 + of_seed[v.seed] + rng.normal(0, 1)))
        maxima.append(max(r.scores.psnr_db for r in rivals))
        chosen.append(measured.strongest(rivals).scores.psnr_db)
    error = np.std(chosen, ddof=1) / np.sqrt(len(chosen))
    assert abs(fmean(chosen) - 15.0) < 4 * error
    assert fmean(maxima) - 15.0 > 8 * error


@pytest.mark.parametrize("outcome", ["gave up", "not applicable"])
@pytest.mark.parametrize(("better", "gain"), [(2.0, 0.0), (0.5, -0.2)])
def test_what_was_not_reconstructed_gains_nothing_and_may_lose(outcome, better, gain):
    """Means that are better than the floor on the whole are no gain; those that are worse count as they are."""
    plain = with_psnr(record(seeds=SEEDS), lambda v: max(v.floors.values()) + (better if v.seed else -3.0))
    ended = with_victims(plain, [v.model_copy(update={"outcome": outcome}) for v in plain.victims])
    assert measured.of(plain).gain_db.mean == pytest.approx((4 * better - 3.0) / 5)
    assert measured.of(ended).gain_db.mean == pytest.approx(gain)
    assert ended.gain_db == pytest.approx(gain)


def test_what_was_reconstructed_keeps_its_gain_beside_better_means():
    plain = with_psnr(record(seeds=SEEDS), lambda v: max(v.floors.values()) + 2.0)
    mixed = with_victims(
        plain, [v.model_copy(update={"outcome": "gave up"}) if v.seed == 1 else v for v in plain.victims]
    )
    assert measured.of(mixed).gains == [0.0 if v.seed == 1 else pytest.approx(2.0) for v in mixed.victims]


def test_references_are_no_attackers_and_one_victim_is_its_own_half():
    weak, bound = of("dlg", lambda v: 12.0), with_knowledge(of("oracle", lambda v: 30.0), rung="L8")
    assert measured.strongest([weak, bound]).name == "dlg"
    assert measured.strongest([bound]).name == "oracle"
    alone = [
        r.model_copy(update={"seeds": [r.seeds[0].model_copy(update={"victims": r.victims[:1]})]})
        for r in (weak, bound)
    ]
    other = of("staged", lambda v: 20.0)
    alone.append(other.model_copy(update={"seeds": [other.seeds[0].model_copy(update={"victims": other.victims[:1]})]}))
    assert measured.strongest(alone).name == "staged"


def test_every_table_says_how_the_strongest_was_chosen_and_what_few_seeds_mean():
    few = [record(seeds=(0, 1)), record("fedcg", seeds=(0, 1))]
    text = report_files.markdown(attack_table.report(few))
    assert measured.CHOSEN in text
    assert "'*': fewer than 5 seeds, too few for a verdict." in text
    assert "]*" in text
    assert "over its victims" not in text
    one = report_files.markdown(attack_table.report([record(seeds=(0,))]))
    assert "of one seed the interval is over its victims and says nothing of training again" in one
    many = report_files.markdown(attack_table.report([record(seeds=SEEDS)]))
    assert "fewer than 5 seeds" not in many
    assert "]*" not in many
    assert "| worst 5%, dB | above 20 dB | identified |" in many


def test_an_attack_that_returned_a_floor_is_said_to_have():
    """Told by the score, so of every attack; what diverged is scored as grey and returned nothing, and floors are no attacks."""
    whole = with_psnr(record(attack="staged"), lambda v: v.floors["class-mean"] + 1e-6)
    assert measured.returned_text(measured.of(whole)) == "returned the class mean"
    half = with_psnr(whole, lambda v: v.floors["class-mean"] if v.seed == 0 else 20.0)
    assert measured.returned_text(measured.of(half)) == "returned the class mean for 4 of 8"
    near = with_psnr(whole, lambda v: v.floors["class-mean"] + 0.01)
    assert measured.returned_text(measured.of(near)) == ""
    diverged = with_victims(whole, [v.model_copy(update={"outcome": "diverged"}) for v in whole.victims])
    assert measured.returned(measured.of(diverged)) == {}
    assert measured.returned(measured.of(record(attack="class-mean"))) == {}
    table = report_files.markdown(attack_table.report([whole]))
    assert "| staged (gradient); returned the class mean |" in table
    assert "staged (returned the class mean)" in table


@pytest.mark.parametrize("strong_sums", [True, False])
def test_attacks_on_other_victims_have_halves_of_their_own(strong_sums):
    """Sums over clients, and one client in them: no victim of one is a victim of the other."""
    sums = of("staged", lambda v: 25.0 if strong_sums else 12.0)
    alone = of("model-inconsistency", lambda v: 20.0)
    # In the order of all names, each of these is followed by one of the others: one half of all would hold none of these.
    victims = [v.model_copy(update={"images": ["0" * 64]}) for v in alone.victims if v.seed == 0]
    alone = with_victims(alone, victims)
    best = measured.strongest([sums, alone])
    assert best.name == ("staged" if strong_sums else "model-inconsistency")
    assert {v.name for v in best.victims} == {v.name for v in (sums if strong_sums else alone).victims}


@pytest.mark.parametrize(
    ("failed", "others", "significant"), [(0, 0, True), (8, 0, True), (19, 0, False), (20, 0, False), (19, 1, False)]
)
def test_an_attack_that_reconstructed_next_to_nothing_is_not_said_to_gain_significantly(failed, others, significant):
    """Its class means may be better than the floor's, and are no reconstructions. Those that gave up are of every seed."""
    made = of("collusion", lambda v: 20.0)
    victims = [
        v.model_copy(
            update={
                "outcome": "gave up" if i < failed else "not applicable" if i < failed + others else "reconstructed"
            }
        )
        for i, v in enumerate(sorted(made.victims, key=lambda v: (v.client, v.images)))
    ]
    row = measured.of(with_victims(made, victims))
    assert row.is_significant == significant
    assert ("That is a significant gain over the floor: +" in sentences.of_attack(row)) == significant
    nothing = failed + others == len(victims)
    assert ("No image was reconstructed; its answers against the floor: " in sentences.of_attack(row)) == nothing


@pytest.mark.parametrize(("others", "significant"), [(0, True), (1, True), (9, False)])
def test_a_gain_of_the_strongest_of_many_is_significant_only_where_one_gains_adjusted_for_their_number(
    others, significant
):
    """Student's t of these five gains over seeds has p = 0.02: twice that is below 0.05, ten times that is not."""
    gains = (1.0, 1.2, 0.8, 0.3, 2.0)
    best = of("staged", lambda v: max(v.floors.values()) + gains[v.seed])
    weak = [of(f"attack-{k}", lambda v: max(v.floors.values()) - 1.0) for k in range(others)]
    row = measured.strongest([best, *weak])
    assert row.attacks == (best,)
    assert row.gain_db.low > 0
    assert row.is_significant == significant


def test_a_mixture_is_significant_where_one_of_its_attacks_gains_by_itself():
    """Seeds differ in what they chose; each by itself gains on every seed."""
    lucky = of("dlg", lambda v: 30.0 if v.seed == 0 else 25.0)
    steady = of("staged", lambda v: 25.5)
    row = measured.strongest([lucky, steady])
    assert len(row.attacks) == 2
    assert row.rivals == (lucky, steady)
    assert row.is_significant
