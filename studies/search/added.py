"""The trials that users add to a running study."""

from hylorada import InputError
from studies.search.ledger import Ledger, Stage
from studies.trials.by_hand.added import added_record
from studies.trials.by_hand.requests import additions, drop_addition, read_addition, set_aside
from studies.trials.messages import Job, Report
from studies.trials.records import Record


class Added(Stage):
    """The trials that users add, which train beside those of whatever stage is under way.

    ASHA neither sees nor stops them, and they can't become winners; see
    :mod:`studies.trials.by_hand.added`.

    Args:
        ledger: ledger of the study. Trials left running by an earlier process are handed out first.
    """

    title = "added"

    def __init__(self, ledger: Ledger) -> None:
        super().__init__(ledger)
        self._left = [r for r in self._mine() if self._is_unfinished(r)]
        self.receive()

    def receive(self) -> bool:
        """Record the trials that users have requested, and return whether there are new ones."""
        new = False
        for name in additions(self._store.folder):
            new = self._receive(name) or new
        return new

    def _receive(self, name: str) -> bool:
        store = self._store
        # After a crash between the two steps, the trial is there and only the request is left.
        if is_new := name not in store.records:
            try:
                addition = read_addition(store.folder, name)
                record = added_record(store.study, store.records, name, addition)
            except InputError as error:
                kept = set_aside(store.folder, name)
                self._ledger.panel.say(f"{name} can't be added: {error}; its request is now {kept}")
                return False
            store.add(record)
            self._left.append(record)
            self._ledger.panel.say(f"added {name}: {_described(record)}")
        drop_addition(store.folder, name)
        return is_new

    def remaining(self) -> int:
        """Return the number of trials not yet handed out."""
        return len(self._left)

    def next_job(self) -> tuple[Job, int] | None:
        """Return the job of the next trial, or None."""
        return self._hand_out(self._left.pop(0)) if self._left else None

    def _prunes(self, record: Record, report: Report) -> bool:
        return False


def _described(record: Record) -> str:
    values = ", ".join(f"{name}={value}" for name, value in record.params.items())
    return f"a clone of {record.winner} with {values}" if record.winner else values
