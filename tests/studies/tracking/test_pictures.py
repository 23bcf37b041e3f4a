"""What a user sees on MLflow's page without a click, in a real browser."""

import pytest
from browser import find_browser
from pictures import draw
from PIL import Image
from study_runs import FinishedStudy

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
