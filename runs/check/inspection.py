"""`inspect`: the report about a checkpoint's files and, with --run, about the loaded model."""

from dataclasses import replace

from configs.tools import InspectSettings
from runs.check.files import examine_files
from runs.check.report import Report, as_json, as_table
from support.border import Failure


def inspect_checkpoint(settings: InspectSettings) -> None:
    """Print the report.

    Raises:
        Failure: after the report, if a file or the loaded model is at fault.
        SettingsError: with --run or --speed, this machine has no such device.
    """
    report = examine(settings)
    print(as_json(report) if settings.json else as_table(report, settings))
    if report.faults:
        names = ", ".join(finding.name for finding in report.faults)
        files = any(not finding.fits for finding in report.findings)
        refused = "; generate_images would refuse these files" if files else ""
        raise Failure(f"--model_path {settings.model_path}: at fault: {names}{refused}")


def examine(settings: InspectSettings) -> Report:
    """Look at the files; if they are right and the settings say so, load and run the model."""
    report = examine_files(settings)
    if not settings.run or report.faults:
        return report
    from runs.check.loaded import run_checks  # imports transformers, which takes seconds

    return replace(report, checks=tuple(run_checks(settings)))
