"""Analyses' questions asked of trained runs: an answer is a line in RESULTS/ANALYSIS.jsonl, and not asked for again."""

import statistics
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from nonneg import analyses, experiments, files, gallery, kept_features, ledger, loop, progress, provenance
from nonneg.comparison import Row, as_markdown, number
from nonneg.errors import BadInput, unknown
from nonneg.experiments import begins, method_of


def analyse(
    name: str,
    *,
    data_root: Path | None,
    results: Path,
    runs: Path,
    only: Sequence[str] = (),
    report_only: bool = False,
    device: str = "auto",
) -> list[Row]:
    """Ask an analysis' question of every run there is that has no answer yet, and return its table and draw its figure.

    Runs are those below RUNS/EXPERIMENT and, where test features are enough, those whose features were kept beside the
    results; `only` names groups or their beginnings (cifar10, cifar10-ncl).
    """
    analysis, path = analyses.find(name), results / f"{name}.jsonl"
    known = {f"{of}-{run_name}" for of in analysis.of for run_name in experiments.find(of).runs}
    for wanted in only:
        if not any(begins(run_name, wanted) for run_name in known):
            raise unknown("group of runs", wanted, {*analysis.of, *(method_of(run_name) for run_name in known)})
    subjects = {of: _trained_runs(of, runs, data_root, device) for of in analysis.of}
    if analysis.test_alone:
        subjects = {of: _kept_runs(of, results, data_root, device) | there for of, there in subjects.items()}
    groups = {(of, g): mine for of, there in subjects.items() for g, mine in analysis.group(list(there)).items()}
    groups = {key: v for key, v in groups.items() if not only or any(begins("-".join(key), w) for w in only)}
    if not report_only:
        if not groups and path.exists():
            progress.say(f"there is no trained run in {runs.absolute()} to ask: these are the answers there are")
        elif not groups:
            raise BadInput(
                f"{name} looks at trained runs, and there are too few in {runs.absolute()}; make them with nonneg "
                f"reproduce {analysis.of[0]}, or see what was measured with --report-only"
            )
        done = {k: v["runs"] for k, v in ledger.read(path).items()}
        todo = {key: mine for key, mine in groups.items() if not {*mine} <= {*done.get("-".join(key), ())}}
        if todo:
            ledger.check_writable(results)
        for i, ((of, group), mine) in enumerate(todo.items()):
            progress.say(f"{name}: {of} {group}, {i + 1} of {len(todo)} to do")
            began = time.monotonic()
            asked = [subjects[of][run_name] for run_name in mine]
            with loop.named(f"{of} {group}"):
                measures = analysis.ask(asked)
            line = {
                "name": f"{of}-{group}",
                "runs": mine,
                "measures": {k: round(v, 6) if isinstance(v, float) else v for k, v in measures.items()},
                "seconds": round(time.monotonic() - began, 1),
                **provenance.made(asked[0].device),
            }
            if kept := [subject.name for subject in asked if subject.kept is not None]:
                line["from_kept_features"] = kept
            ledger.put(path, line)
    lines = ledger.read(path)
    if not lines:
        progress.say(f"no results of {name} in {results.absolute()}; --results names another folder")
    if picture := analysis.draw(lines) if lines and not report_only else None:
        gallery.write(results / "figures" / f"{name}.png", picture, colours=gallery.CHART)
    missing = _not_asked(analysis, lines)
    if not report_only:
        files.write_text(results / f"{name}.md", as_markdown(_analysis_table(analysis, lines, missing)))

    def chosen(found: Mapping[str, Any]) -> dict[str, Any]:
        return {k: v for k, v in found.items() if not only or any(begins(k, wanted) for wanted in only)}

    return _analysis_table(analysis, chosen(lines), chosen(missing))


def _trained_runs(of: str, runs: Path, data_root: Path | None, device: str) -> dict[str, analyses.Subject]:
    """The runs of an experiment that are there, by name."""
    return {
        name: analyses.Subject(of, name, runs / of / name, data_root, device)
        for name in experiments.find(of).runs
        if (runs / of / name / "model.safetensors").exists()
    }


def _kept_runs(of: str, results: Path, data_root: Path | None, device: str) -> dict[str, analyses.Subject]:
    """The runs of an experiment whose test features were kept beside the results, by name."""
    paths = {name: kept_features.path_of(of, name, results) for name in experiments.find(of).runs}
    return {
        name: analyses.Subject(of, name, path.parent, data_root, device, kept=path)
        for name, path in paths.items()
        if path.exists()
    }


def _not_asked(analysis: analyses.Analysis, lines: Mapping[str, dict[str, Any]]) -> dict[str, str]:
    """The declared methods of which there is no line: EXPERIMENT-METHOD -> as it is called."""
    found = {}
    for of in analysis.of:
        declared = experiments.find(of)
        groups = analysis.group(list(declared.runs))
        methods = {method for method in declared.methods if any(method in (g, method_of(g)) for g in groups)}
        for method in (m for m in declared.methods if m in methods):
            if not any(name == f"{of}-{method}" or method_of(name) == f"{of}-{method}" for name in lines):
                found[f"{of}-{method}"] = _called(of, declared.methods[method])
    return found


def _called(of: str, method: str) -> str:
    return method if of == "maps" else f"{method}, {of}"


def _analysis_table(
    analysis: analyses.Analysis, lines: Mapping[str, dict[str, Any]], missing: Mapping[str, str]
) -> list[Row]:
    """A row for every number and method of which there is a line, or that the paper has, and each method missing."""
    out = []
    for key, (text, scale) in analysis.table.items():
        for of in analysis.of:
            for method, called in experiments.find(of).methods.items():
                asked = [v for k, v in lines.items() if k == f"{of}-{method}" or method_of(k) == f"{of}-{method}"]
                asked = [v for v in asked if key in v["measures"]]
                found = [number(v["measures"][key], f"{key} of {of}-{method}") for v in asked]
                values = [scale * v for v in found if v is not None]
                whole = len(values) == len(found)  # else the mean would be of those alone that have a value
                paper = analysis.paper.get((key, f"{of}-{method}"))
                if values or paper is not None:
                    out.append(
                        Row(
                            measure=text,
                            method=_called(of, called),
                            paper=paper,
                            ours=statistics.mean(values) if values and whole else None,
                            std=statistics.stdev(values) if len(values) > 1 and whole else None,
                            seeds=sum(len(v["runs"]) for v in asked),
                        )
                    )
    return out + [Row("all of these", called, paper=None, ours=None, std=None, seeds=0) for called in missing.values()]
