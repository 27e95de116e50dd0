"""All features of a run, of its task and of the command, and the one check of them.

Every door calls `check_run`, or `check_saved`, before anything is read or sent.
"""

from collections.abc import Sequence

from hpcgnn.config import features
from hpcgnn.config.config import Config
from hpcgnn.operator import Aggregation
from hpcgnn.support import Feature, Trait, check, needs
from hpcgnn.train.tasks import find_pair

PLAN = Feature("hpcgnn plan", needs(Trait.PLANNED))
EXPORT = Feature("hpcgnn export", needs(Trait.EXPORTED))
DGL = Feature("--to dgl", needs(Trait.DGL), remedy="export --to torch or pyg")
LIBRARY = Feature("hpcgnn.open_graph", needs(Trait.OWN_LOOPS))


def features_of(
    config: Config, doors: Sequence[Feature] = (), wanted: Sequence[Aggregation] = ()
) -> list[Feature]:
    """Return all features of a run.

    Parameters
    ----------
    doors
        What it is for: `PLAN` and its like; none to train.
    wanted
        Aggregations in place of the model's.
    """
    # What a command lacks counts before what the configuration lacks by itself.
    found = [*doors, *features.features_of(config, wanted)]
    found.extend(find_pair(config.train.task).features(config))
    return found


def check_run(config: Config, *doors: Feature, wanted: Sequence[Aggregation] = ()) -> None:
    """Raise an `InputError` where two features of a run do not work together.

    Parameters
    ----------
    doors, wanted
        As in `features_of`.
    """
    check(config, lambda changed: features_of(changed, doors, wanted), features.changes)


def check_saved(config: Config, *doors: Feature) -> None:
    """Raise an `InputError` where a run that has ended does not go with what is asked of it."""
    check(config, lambda same: features_of(same, doors), lambda _config, _key: ())
