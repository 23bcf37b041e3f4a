from .analysis.results import Results
from .api.running import add_trial, stop_study, stop_trial
from .api.runs import compare_studies, estimate, extend_study, get_study, run_study
from .api.study_results import StudyResults, load_results
from .process.errors import StudyStopped
from .process.options import Options
from .runner.estimate import Estimate
from .search.ledger import Callbacks
from .spec.arms import Arm
from .spec.space import Choice, Parameter, Range, Space
from .spec.study import Study
from .trials.records import Record

__all__ = [
    "Arm",
    "Callbacks",
    "Choice",
    "Estimate",
    "Options",
    "Parameter",
    "Range",
    "Record",
    "Results",
    "Space",
    "Study",
    "StudyResults",
    "StudyStopped",
    "add_trial",
    "compare_studies",
    "estimate",
    "extend_study",
    "get_study",
    "load_results",
    "run_study",
    "stop_study",
    "stop_trial",
]
