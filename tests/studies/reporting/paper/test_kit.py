"""``hylorada export --figures`` writes all that the report shows, equal to the byte each time."""

import csv
import io
import json
import os
import re
import shutil
import subprocess
import sys
import xml.etree.ElementTree as ET
import zlib
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from latex_reader import plain, plain_prose, read_table
from made_records import named, record, study
from matplotlib.figure import Figure

from studies.analysis.results import Results
from studies.cli.commands import main
from studies.reporting.paper.kit import _figure_files, kit_files
from studies.reporting.sections import Picture, Table, sections

_ODD_FIGURES = {
    "comparisons",
    "tuning",
    "trials-by-parameter",
    "trials-by-step",
}


@pytest.fixture(scope="module")
def kit(odd: Any) -> dict[str, bytes]:
    return kit_files(odd.study, odd.results, odd.records, odd.folder)


def parts(made: Any) -> list[Any]:
    made_of = sections(made.results, made.records, made.study, made.folder)
    return [part for section in made_of for part in section.parts]


def contents(folder: Path) -> dict[str, bytes]:
    return {str(p.relative_to(folder)): p.read_bytes() for p in folder.rglob("*") if p.is_file()}


def test_every_figure_of_the_report_is_svg_and_pdf(odd: Any, kit: dict[str, bytes]) -> None:
    drawn = [p for p in parts(odd) if isinstance(p, Picture) and p.figure is not None]
    stems = {Path(name).stem for name in kit if name.startswith("figures/")}
    assert stems == _ODD_FIGURES
    assert len(drawn) == len(stems)
    for stem in stems:
        assert {f"figures/{stem}.svg", f"figures/{stem}.pdf"} <= set(kit)
    shown = (odd.folder / "report.html").read_text("utf-8").count("<figure>")
    assert shown == len(stems)


def test_svg_is_whole_and_its_text_is_text(kit: dict[str, bytes]) -> None:
    root = ET.fromstring(kit["figures/comparisons.svg"])
    texts = {t.text for t in root.iter("{http://www.w3.org/2000/svg}text")}
    assert "a_b 1.5 vs été 学 x-1" in texts
    assert float((root.get("width") or "").removesuffix("pt")) == pytest.approx(72 * 6.75)
    assert b"var(--" not in kit["figures/comparisons.svg"]


def test_pdf_is_whole_and_has_embedded_fonts(kit: dict[str, bytes]) -> None:
    for name in [n for n in kit if n.endswith(".pdf")]:
        content = kit[name]
        assert content.startswith(b"%PDF-1.")
        assert content.rstrip().endswith(b"%%EOF")
        start = int(content.rsplit(b"startxref", 1)[1].split()[0])
        assert content[start:].startswith(b"xref")
        streams = re.findall(rb"stream\r?\n(.*?)\r?\nendstream", content, re.DOTALL)
        inflated = b"".join(zlib.decompress(s) for s in streams if s[:1] == b"x")
        assert b" Tf" in inflated  # text is set in a font, not drawn as paths
        assert b"/FontFile2" in content + inflated
        assert b"/Type3" not in content + inflated
        assert b"CreationDate" not in content


def test_tables_hold_the_cells_of_the_report(odd: Any, kit: dict[str, bytes]) -> None:
    tables = [p for p in parts(odd) if isinstance(p, Table) and p.sheet.rows]
    by_title = {
        read_table(kit[n].decode()).caption: n
        for n in kit
        if n.startswith("tables/") and n.endswith(".tex")
    }
    assert len(by_title) == len(tables)
    for table in tables:
        name = next(n for c, n in by_title.items() if c.startswith(printed(table.title)))
        used = table.sheet.used()
        cells = [[row[i] for i in used] for row in (table.sheet.columns, *table.sheet.rows)]
        stored = io.StringIO(kit[name.replace(".tex", ".csv")].decode(), newline="")
        assert list(csv.reader(stored)) == cells
        rows = read_table(kit[name].decode()).rows
        expected = [[printed(cell) for cell in row] for row in cells]
        assert rows in (expected, [list(row) for row in zip(*expected, strict=True)])


def printed(text: str) -> str:
    """A text as pdflatex prints it: without the characters that its fonts lack."""
    return text.replace("学", "U+5B66").replace("\N{MINUS SIGN}", "-").replace('"', "''")


def test_names_that_latex_would_read_as_commands_come_through(tmp_path: Path) -> None:
    hostile = "a_b & c% <$x^2$> \\\\ {#1}"
    made = study("plain")  # arms can't be named so; escaping does not rest on that
    made = replace(made, arms={hostile: made.arms["plain"]})
    trials = named(*(record(hostile, i, [16, 15, 14.5 + i]) for i in range(4)))
    results = Results(hostile, None, 0, (), (), hostile, (), {})
    kit = kit_files(made, results, trials, tmp_path)
    (name,) = [n for n in kit if n.startswith("tables/trials") and n.endswith(".tex")]
    rows = read_table(kit[name].decode()).rows
    assert [row[0] for row in rows[1:]] == [f"{hostile}-{i:04d}" for i in range(4)]
    assert f"The arm {hostile} searches" in plain_prose(kit["methods.tex"].decode())
    assert {Path(n).stem for n in kit if n.endswith(".pdf")} >= {"tuning", "trials-by-step"}


def test_figures_are_included_with_captions_and_labels(kit: dict[str, bytes]) -> None:
    source = kit["figures.tex"].decode()
    included = re.findall(r"\\includegraphics\[.*?\]\{(.*?)\}", source)
    assert sorted(included) == sorted(n for n in kit if n.endswith(".pdf"))
    labels = re.findall(r"\\label\{(.*?)\}", source)
    assert "fig:etude-1-2-comparisons" in labels
    assert len(set(labels)) == len(included)
    for caption in re.findall(r"\\caption\{(.*)\}$", source, re.MULTILINE):
        assert "Hover" not in plain(caption)


_PACKAGES = "geometry,booktabs,adjustbox,longtable,xcolor,graphicx"


def test_many_figures_are_set_in_groups_that_latex_can_hold() -> None:
    """It stops at 19 figures that wait for a page."""
    figure = Figure()
    pictures = {f"p{n}": Picture(f"p{n}", figure, "") for n in range(30)}
    source = _figure_files(pictures, "own")["figures.tex"].decode()
    groups = source.split("\\clearpage\n")
    assert [group.count("\\begin{figure}") for group in groups] == [12, 12, 6]


@pytest.mark.skipif(shutil.which("pdflatex") is None, reason="pdflatex is not installed")
def test_whole_kit_compiles_within_the_margins(kit: dict[str, bytes], tmp_path: Path) -> None:
    for name, content in kit.items():
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_bytes(content)
    tables = sorted(name for name in kit if name.startswith("tables/") and name.endswith(".tex"))
    inputs = ["methods.tex", *tables, "figures.tex"]
    body = "".join(f"\\input{{{name}}}\\clearpage\n" for name in inputs)
    cited = "\\bibliographystyle{plain}\\bibliography{references}"
    opening = f"\\documentclass{{article}}\\usepackage{{{_PACKAGES}}}\\begin{{document}}"
    (tmp_path / "page.tex").write_text(f"{opening}\n{body}{cited}\\end{{document}}")
    command = ["pdflatex", "-halt-on-error", "-interaction=nonstopmode", "page.tex"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=100)
    assert done.returncode == 0, done.stdout[-2000:]
    beyond = re.findall(r"Overfull \\hbox \(([\d.]+)pt too wide\)", done.stdout)
    assert [points for points in beyond if float(points) > 10] == []


def test_equal_studies_give_equal_bytes_in_other_processes(odd: Any, tmp_path: Path) -> None:
    written = []
    for seed in ("1", "2"):
        output = tmp_path / seed
        arguments = ["export", odd.study.name, f"--storage={odd.storage}", f"--figures={output}"]
        subprocess.run(
            [sys.executable, "-m", "studies.cli.main", *arguments],
            env={**os.environ, "PYTHONHASHSEED": seed, "SOURCE_DATE_EPOCH": seed * 9},
            check=True,
            capture_output=True,
            timeout=110,
        )
        written.append(contents(output))
    assert written[0] == written[1]


def test_command_prints_what_it_wrote(
    odd: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    command = ["export", odd.study.name, f"--storage={odd.storage}", f"--figures={tmp_path}/p"]
    assert main(command) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0] == f"{tmp_path}/p/figures: 4 .svg, 4 .pdf"
    assert lines[-1].endswith("arms.csv, comparisons.csv, changes.csv, trials.csv")
    before = contents(tmp_path / "p")
    assert main([*command, "--json"]) == 0
    said = json.loads(capsys.readouterr().out)
    assert (said["study"], said["figures"]) == (odd.study.name, f"{tmp_path}/p")
    assert {*said["files"], "files.json"} == set(before) == set(contents(tmp_path / "p"))


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ([], "name a folder with --output (the adapter) or --figures"),
        (["--figures=x", "--arm=fixed", "--seed=1"], "--arm chooses an adapter; it needs --output"),
        (
            ["--figures=x", "--output=./x"],
            "--output and --figures must name different folders, neither inside the other",
        ),
        (["--figures=full"], "'full' is not empty and holds no figures of study 'made'"),
    ],
)
def test_wrong_commands_are_refused_before_any_compute(
    plain_study: Any,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    arguments: list[str],
    message: str,
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "thesis.tex").touch()
    assert main(["export", "made", f"--storage={plain_study.storage}", *arguments]) == 2
    assert message in capsys.readouterr().err
    assert [p.name for p in tmp_path.rglob("*")] == ["full", "thesis.tex"]


def test_unfinished_study_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    from made_studies import make

    make(tmp_path / "studies" / "made", "confirm").close()
    assert main(["export", "made", f"--storage={tmp_path}", f"--figures={tmp_path}/p"]) == 2
    assert "study 'made' has not finished" in capsys.readouterr().err
    assert not (tmp_path / "p").exists()


def test_figures_of_arms_without_gates_need_no_torch(tmp_path: Path) -> None:
    from finished_folder import write_finished

    write_finished(tmp_path, name="own")
    script = (
        "import sys; from studies.cli.commands import main;"
        f"main(['export', 'own', '--storage={tmp_path}', '--figures={tmp_path}/p']);"
        "print('torch' in sys.modules)"
    )
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, timeout=110, check=True
    )
    assert done.stdout.splitlines()[-1] == "False"
