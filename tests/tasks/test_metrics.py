"""Label scores against scikit-learn, to the last digit, and where a score is a matter of definition."""

import warnings

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from sklearn import metrics as oracle

from bertsmith.errors import InputError
from bertsmith.tasks.metrics.labels import label_scores, show_scores
from bertsmith.tasks.metrics.seeds import mean, spread

LABELS = ["neg", "neutral", "긍정", "d", "e", "f", "g", "h", "i", "j", "k"]


@st.composite
def judged(draw: st.DrawFn) -> tuple[list[str], list[str]]:
    labels = LABELS[: draw(st.integers(1, len(LABELS)))]
    rows = draw(st.integers(1, 300))
    one_side = st.lists(st.sampled_from(labels), min_size=rows, max_size=rows)
    return draw(one_side), draw(one_side)


@settings(deadline=None)
@given(judged())
def test_scores_are_scikit_learns_to_the_last_digit(sides):
    truth, predicted = sides
    scores = label_scores(truth, predicted, LABELS)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        assert scores.accuracy == oracle.accuracy_score(truth, predicted)
        assert scores.macro_f1 == oracle.f1_score(truth, predicted, average="macro", zero_division=0)
        assert scores.matthews == oracle.matthews_corrcoef(truth, predicted)
        assert [list(row) for row in scores.confusion] == oracle.confusion_matrix(
            truth, predicted, labels=LABELS
        ).tolist()


def test_constant_predictions_have_values_and_a_word():
    scores = label_scores(["a", "b", "b"], ["b", "b", "b"], ["a", "b"])
    assert scores.matthews == 0.0
    assert scores.collapsed
    assert scores.macro_f1 == pytest.approx(0.4)
    assert "every prediction is 'b'" in scores.notes[0]
    assert "every prediction is 'b'" in show_scores(scores)


def test_constant_truth_answered_rightly_is_no_collapse():
    assert not label_scores(["a", "a"], ["a", "a"], ["a", "b"]).collapsed


def test_many_labels_are_too_many_for_a_matrix_and_it_is_said():
    names = [str(number) for number in range(21)]
    assert "21 labels are too many to show" in show_scores(label_scores(names, names, names))


def test_one_true_label_and_absent_labels_have_a_word():
    scores = label_scores(["a", "a"], ["a", "b"], ["a", "b", "c"])
    assert scores.matthews == 0.0
    assert not scores.collapsed
    assert any("every true label is 'a'" in note for note in scores.notes)
    assert any("neither true nor predicted" in note and "'c'" in note for note in scores.notes)


def test_all_right_with_one_class_is_not_nan():
    scores = label_scores(["a"], ["a"], ["a", "b"])
    assert (scores.accuracy, scores.macro_f1, scores.matthews) == (1.0, 1.0, 0.0)


def test_wrong_input_is_refused():
    with pytest.raises(InputError, match="2 true labels and 1 predictions"):
        label_scores(["a", "b"], ["a"], ["a", "b"])
    with pytest.raises(InputError, match="no rows"):
        label_scores([], [], ["a", "b"])
    with pytest.raises(InputError, match="prediction 'x' is none of"):
        label_scores(["a"], ["x"], ["a", "b"])


def test_spread_is_over_n_minus_one():
    assert mean([1.0, 2.0, 6.0]) == 3.0
    assert spread([1.0, 3.0]) == pytest.approx(2**0.5)
    assert spread([1.0]) is None
