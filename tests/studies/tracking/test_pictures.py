"""What a user sees on MLflow's page without a click, in a real browser."""

import pytest
from browser import find_browser
from pictures import draw
from PIL import Image
from study_runs import FinishedStudy

from studies.analysis.results import read_results

pytestmark = [
    pytest.mark.slow,
    pytest.mark.timeout(600),
    pytest.mark.skipif(find_browser() is None, reason="needs Chromium and chromedriver"),
]


@pytest.fixture(scope="module")
def texts(finished: FinishedStudy, tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """The texts of the pages of a whole study; pictures are drawn beside."""
    folder = tmp_path_factory.mktemp("pictures")
    texts = draw(finished.storage, folder, finished.name)
    for page in texts:
        with Image.open(folder / f"{page}.png") as picture:
            assert picture.width > 1000
        assert (folder / f"{page}.png").stat().st_size < 150_000
    return texts


def test_answer_stands_above_the_trials_and_in_the_studys_run(
    texts: dict[str, str], finished: FinishedStudy
) -> None:
    results = read_results(finished.folder / "results.json")
    opening = results.verdict.split(". ")[0]
    assert opening in texts["trials"]
    assert opening in texts["answer"]
    for comparison in results.comparisons:
        assert f"{comparison.arm} vs {comparison.reference}\t" in texts["answer"]


def test_runs_are_compared_by_perplexity_over_arm_and_learning_rate(texts: dict[str, str]) -> None:
    picked = texts["compared"].partition("Clear All")[0]
    assert [name for name in ("arm", "learning_rate", "eval/ppl") if name not in picked] == []


def test_loss_is_the_first_chart_of_a_run(texts: dict[str, str]) -> None:
    sections = [line for line in texts["run"].splitlines() if line.endswith(")")]
    assert sections[0] == "eval (2)"
    assert not [section for section in sections if section.startswith("boundary")]
