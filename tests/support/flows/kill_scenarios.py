"""Where processes with flows die, and what must come of it.

S is of a flow that sends, R of one that receives, F of the engine, P of code that is run again.
What covers them in the simulator is in `tests/simulation/flows/coverage.py`.
The points of a commit are `durable.commit.*`: before it, after it, and after everybody was told.

===  ===========================================  ==================================================
Id   Dies at                                      What must happen
===  ===========================================  ==================================================
S1   step.done of a transaction, commit.before    undone, done again once; nothing was sent
S2   commit.after with a message                  it happened: sent once, no step is done again
S3   commit.after, .reported with a receipt       the letter is not given to the flow again, even
                                                  if it came while a transaction was open
S4   bridge.before_send                           sent after the restart
S5   bridge.* between two peers of send_all       each peer gets it once
S6   bridge.after_send, .accepted                 sent again, and taken once
S7   event.handled, commit.after of a Confirm     the session goes on
S8   commit.before of the end                     the last step is done once
S9   commit.after of the end, bridge.before_send  the other end hears of it
S11  bridge.after_send, step.done after close     the other end hears of one end, behind all data
R1   commit.after, intake.after_accept of mail    one flow responds after the restart
R2   consumer.taken, letter.taken                 the letter comes again
R3   event.handled, commit.before of a responder  the letter comes again, one flow responds
R4   commit.after of a responder                  no second flow for the letter
R5   commit.reported, bridge.before_send          the Confirm is sent after the restart
R6   bridge.after_send, step.done                 its code runs again, and says nothing twice
R7   commit.* of messages nobody asked for yet    they are there in order
R8   bridge.after_send, or a pause of the peer    the second copy does not begin a second flow
R9   session.rejected, commit.* of the rejection  one rejection, and no flow
R10  letter.taken for one that ended, is unknown  done with; of one that is paused: kept
R11  none: garbage in the queue of flows          a dead letter; flows go on
R13  commit.after of a flow nobody knows          held over restarts, begins when there is code
R14  commit.after of data with an end             all data is read before the end
F1   event.handled, commit.* of the beginning     one flow for each client id
F2   client.told                                  whoever asks again gets the result
F3   step.done outside of the store               done again, under the same id
F4   commit.reported of a sleep, event of waking  the time it sleeps until stays the same
F5   event.handled, commit.* of an error          goes on from the step before
F6   commit.*, bridge.before_send of a failure    the same error at both ends; it stays failed
F7   commit.*, bridge.before_send unconfirmed     the responder begins, and hears of the failure
F8   loaded, event.handled of another attempt     each message is read once
F9   event.handled, commit.* of an operator's     stays killed; the other end hears of it once
F10  commit.after for one that is paused          stays paused, and then reads all in order
F11  commit.after of one that is parked           tried again when the process starts
F12  step.*, commit.after inside of a subflow     what the flow did before is not done again
F13  commit.after of changed code being parked    parked; goes on with the code it began with
F14  event.handled and others: a soft stop there  all payments under way end
F15  commit.lost: a disk that takes nothing       all of them end when there is room
F16  schedule.due, .begun                         one flow for each time
P1   step.begins, step.done                       done again, under the same id
P2   commit.after, commit.durable of a step       not done again
P3   step.done, commit.after among branches       those that are not recorded are done again
P4   commit.* of the first of several             it stays the first
P5   recovery.claimed: two processes, one store   the second does not start, or takes over
P6   recovery.counted, loaded while it starts     the next start goes on with all of them
P7   commit.after of fewer, more, other steps     parked with what differs
P8   commit.after of a result that cannot be      parked, and says why
     written down
P9   commit.* of what ends another branch         that one is not done again
P10  commit.after; then the clock is set back     one flow for each time; no id is used again;
                                                  who sleeps sleeps on
===  ===========================================  ==================================================
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

PAYER, PAYEE, THIRD = "payer", "payee", "third"

BEFORE, AFTER, REPORTED = "durable.commit.before", "durable.commit.after", "durable.commit.reported"
HANDLED, LETTER = "flows.event.handled", "flows.session.received"
BEGINS, DONE = "flows.step.started", "flows.step.completed"
CLAIMED, COUNTED = "flows.recovery.claimed", "flows.recovery.counted"
LOST, TAKEN = "flows.commit.lost", "durable.consumer.dispatched"
BEFORE_SEND, AFTER_SEND = "durable.bridge.before_send", "durable.bridge.after_send"


class Kill(NamedTuple):
    """Where a process dies.

    Attributes:
        ids: of the scenarios.
        name: what it is called in a report.
        victim: who dies.
        point: the fault point.
        where: which times count that it is reached; see `flow_node`.
        nth: at which of them.
        again: the fault point at which it dies once more when it is started again.
    """

    ids: str
    name: str
    victim: str
    point: str
    where: str = "-"
    nth: int = 1
    again: str = ""


KILLS: dict[str, list[Kill]] = {
    "pay": [
        Kill("F1", "begin-handled", PAYER, HANDLED, "flow=pay&event=FlowAdmitted"),
        Kill("F1", "begin-not-committed", PAYER, BEFORE, "flow=pay&has=is_new"),
        Kill("F1", "begin-committed", PAYER, AFTER, "flow=pay&has=is_new"),
        Kill("F1", "begin-reported", PAYER, REPORTED, "flow=pay&has=is_new"),
        Kill("P1", "debit-begins", PAYER, BEGINS, "step=move"),
        Kill("S1", "debit-done", PAYER, DONE, "step=move"),
        Kill("S1", "debit-handled", PAYER, HANDLED, "flow=pay&event=StepCompleted"),
        Kill("S1", "debit-not-committed", PAYER, BEFORE, "flow=pay&has=outgoing"),
        Kill("S2", "debit-committed", PAYER, AFTER, "flow=pay&has=outgoing"),
        Kill("S2 P2", "debit-durable", PAYER, "flows.commit.durable", "flow=pay", 2),
        Kill("S4", "not-sent", PAYER, BEFORE_SEND),
        Kill("S6", "sent", PAYER, AFTER_SEND),
        Kill("S6", "accepted", PAYER, "durable.bridge.accepted"),
        Kill("R2", "confirm-taken", PAYER, LETTER),
        Kill("S7", "confirm-handled", PAYER, HANDLED, "flow=pay&event=SessionMessagesReceived"),
        Kill("S7", "confirm-committed", PAYER, AFTER, "flow=pay&has=buffered"),
        Kill("S3", "receipt-handled", PAYER, HANDLED, "flow=pay&event=SessionMessagesReceived", 2),
        Kill("S3", "receipt-committed", PAYER, AFTER, "flow=pay&has=entries&has=ack_tokens"),
        Kill("S3", "receipt-reported", PAYER, REPORTED, "flow=pay&has=entries&has=ack_tokens"),
        Kill("S8", "end-not-committed", PAYER, BEFORE, "flow=pay&has=is_ended"),
        Kill("S2 F2", "end-committed", PAYER, AFTER, "flow=pay&has=is_ended"),
        Kill("F2", "client-not-told", PAYER, "flows.result.resolved"),
        Kill("P6", "then-loaded", PAYER, AFTER, "flow=pay&has=is_new", again="flows.loaded"),
        Kill("P6", "then-counted", PAYER, AFTER, "flow=pay&has=outgoing", again=COUNTED),
        Kill("P5", "then-claimed", PAYER, AFTER, "flow=pay&has=outgoing", again=CLAIMED),
    ],
    "be paid": [
        Kill("R1", "stored", PAYEE, AFTER, "unit=WindowMutation"),
        Kill("R1", "accepted", PAYEE, "durable.receiver.after_accept"),
        Kill("R2", "message-taken", PAYEE, "durable.consumer.dispatched"),
        Kill("R2", "letter-taken", PAYEE, LETTER),
        Kill("R3", "responder-handled", PAYEE, HANDLED, "event=FlowAdmitted"),
        Kill("R3", "responder-not-committed", PAYEE, BEFORE, "flow=credit&has=is_new"),
        Kill("R4", "responder-committed", PAYEE, AFTER, "flow=credit&has=is_new"),
        Kill("R5", "responder-reported", PAYEE, REPORTED, "flow=credit&has=is_new"),
        Kill("R5", "confirm-not-sent", PAYEE, BEFORE_SEND),
        Kill("R6", "confirm-sent", PAYEE, AFTER_SEND),
        Kill("R6 P1", "credit-begins", PAYEE, BEGINS, "step=move"),
        Kill("S1 R6", "credit-done", PAYEE, DONE, "step=move"),
        Kill("S8", "end-not-committed", PAYEE, BEFORE, "flow=credit&has=is_ended"),
        Kill("S9", "end-committed", PAYEE, AFTER, "flow=credit&has=is_ended"),
        Kill("S9", "end-reported", PAYEE, REPORTED, "flow=credit&has=is_ended"),
        Kill("P6", "then-loaded", PAYEE, AFTER, "flow=credit&has=is_new", again="flows.loaded"),
    ],
    "pay too much": [
        Kill("F6", "failure-not-committed", PAYEE, BEFORE, "flow=credit&has=is_ended"),
        Kill("F6", "failure-committed", PAYEE, AFTER, "flow=credit&has=is_ended"),
        Kill("F6", "failure-not-sent", PAYEE, BEFORE_SEND),
        Kill("F6", "failure-sent", PAYEE, AFTER_SEND),
        Kill("F6", "failure-heard", PAYER, AFTER, "flow=pay&has=entries&has=ack_tokens"),
        Kill("F6", "refund-done", PAYER, DONE, "step=move", 2),
        Kill("F6", "end-not-committed", PAYER, BEFORE, "flow=pay&has=is_ended"),
        Kill("F6", "end-committed", PAYER, AFTER, "flow=pay&has=is_ended"),
    ],
    "pay both": [
        Kill("S1", "one-debit-done", PAYER, DONE, "flow=pay_both"),
        Kill("S1", "debits-done", PAYER, DONE, "flow=pay_both", 2),
        Kill("S1", "debits-not-committed", PAYER, BEFORE, "flow=pay_both&has=outgoing"),
        Kill("S5", "none-sent", PAYER, AFTER, "flow=pay_both&has=outgoing"),
        Kill("S5", "one-sent", PAYER, AFTER_SEND),
        Kill("S5", "one-not-sent", PAYER, BEFORE_SEND, nth=2),
        Kill("S5", "both-sent", PAYER, AFTER_SEND, nth=2),
        Kill("S5 S3", "one-heard", PAYER, AFTER, "flow=pay_both&has=buffered"),
    ],
    "dictate": [
        Kill("R8", "sent", PAYER, AFTER_SEND),
        Kill("S11", "close-committed", PAYER, AFTER, "flow=dictate&has=outgoing", 2),
        Kill("S11", "close-not-sent", PAYER, BEFORE_SEND, nth=2),
        Kill("S11", "close-sent", PAYER, AFTER_SEND, nth=2),
        Kill("S11", "step-after-close", PAYER, DONE, "step=act"),
        Kill("S11", "end-after-close", PAYER, BEFORE, "flow=dictate&has=is_ended"),
        Kill("R7", "lines-not-kept", PAYEE, BEFORE, "flow=listen&has=buffered"),
        Kill("R7", "lines-kept", PAYEE, AFTER, "flow=listen&has=buffered"),
        Kill("R7", "more-lines-not-kept", PAYEE, BEFORE, "flow=listen&has=buffered", 2),
        Kill("R7 R14", "more-lines-and-end-kept", PAYEE, AFTER, "flow=listen&has=buffered", 2),
        Kill("R14", "lines-read", PAYEE, AFTER, "flow=listen&has=consumed_ids"),
        Kill("R14 P1", "lines-noted", PAYEE, DONE, "step=note", 3),
    ],
    "kill": [
        Kill("F9", "kill-handled", PAYER, HANDLED, "flow=ask&event=FlowKillRequested"),
        Kill("F9", "kill-not-committed", PAYER, BEFORE, "flow=ask&has=is_ended"),
        Kill("F9", "kill-committed", PAYER, AFTER, "flow=ask&has=is_ended"),
        Kill("F9", "kill-not-sent", PAYER, BEFORE_SEND, nth=2),
        Kill("F9", "kill-sent", PAYER, AFTER_SEND, nth=2),
        Kill("F9 R2", "kill-taken", PAYEE, LETTER, nth=2),
        Kill("F9 R7", "kill-kept", PAYEE, AFTER, "flow=answer&has=buffered"),
    ],
    "blurt": [
        Kill("F7", "failure-not-committed", PAYER, BEFORE, "flow=blurt&has=is_ended"),
        Kill("F7", "failure-committed", PAYER, AFTER, "flow=blurt&has=is_ended"),
        Kill("F7", "failure-not-sent", PAYER, BEFORE_SEND),
        Kill("F7", "failure-sent", PAYER, AFTER_SEND),
        Kill("F7 R3", "failure-taken", PAYEE, LETTER),
        Kill("F7 R4", "failure-heard", PAYEE, AFTER, "flow=hear_out&has=is_new"),
    ],
    "collect": [
        Kill("F8", "error-handled", PAYER, HANDLED, "flow=collect&event=StepFailed"),
        Kill("F8", "attempt-waits", PAYER, AFTER, "flow=collect&status=retrying"),
        Kill("F8", "attempt-loaded", PAYER, "flows.loaded"),
        Kill("F8", "attempt-handled", PAYER, HANDLED, "flow=collect&event=TimerFired"),
        Kill("F8 R7", "lines-read", PAYER, BEFORE, "flow=collect&has=is_ended"),
        Kill("S6 R6", "some-said", PAYEE, AFTER_SEND, nth=3),
        Kill("S2", "some-committed", PAYEE, AFTER, "flow=recite&has=outgoing", 3),
    ],
    "be rejected": [
        Kill("R9", "not-committed", PAYEE, "flows.session.rejected"),
        Kill("R9", "committed", PAYEE, AFTER, "unit=DispositionMutation"),
        Kill("R9", "not-sent", PAYEE, BEFORE_SEND),
        Kill("R9", "sent", PAYEE, AFTER_SEND),
        Kill("R9", "taken", PAYER, LETTER),
        Kill("R9", "heard", PAYER, AFTER, "flow=order&has=is_ended"),
    ],
    "run an errand": [
        Kill("P1", "step-begins", PAYER, BEGINS, "step=act", 2),
        Kill("F3 P1", "step-done", PAYER, DONE, "step=act", 2),
        Kill("F3", "step-handled", PAYER, HANDLED, "flow=errand&event=StepCompleted", 2),
        Kill("F3", "step-not-committed", PAYER, BEFORE, "flow=errand&has=entries", 2),
        Kill("P2", "step-committed", PAYER, AFTER, "flow=errand&has=entries", 2),
        Kill("P2", "step-durable", PAYER, "flows.commit.durable", "flow=errand", 3),
    ],
    "browse": [
        Kill("P1", "first-look-done", PAYER, DONE, "step=look"),
        Kill("P1", "first-look-handled", PAYER, HANDLED, "flow=browse&event=StepCompleted"),
        Kill("P1", "second-look-done", PAYER, DONE, "step=look", 2),
        Kill("P1", "looks-not-committed", PAYER, BEFORE, "flow=browse&has=entries"),
        Kill("P2", "looks-committed", PAYER, AFTER, "flow=browse&has=entries"),
        Kill("P2", "note-not-committed", PAYER, BEFORE, "flow=browse&has=entries", 2),
    ],
    "run errands": [
        Kill("P3", "one-done", PAYER, DONE, "step=act"),
        Kill("P3", "three-done", PAYER, DONE, "step=act", 3),
        Kill("P3", "some-committed", PAYER, AFTER, "flow=errands&has=entries"),
        Kill("P3", "some-durable", PAYER, "flows.commit.durable", "flow=errands", 3),
    ],
    "choose": [
        Kill("P4 P9", "first-handled", PAYER, HANDLED, "flow=choose&event=SignalReceived"),
        Kill("P4 P9", "first-not-committed", PAYER, BEFORE, "flow=choose&has=entries"),
        Kill("P4 P9", "first-committed", PAYER, AFTER, "flow=choose&has=entries"),
        Kill("P4 P9", "first-reported", PAYER, REPORTED, "flow=choose&has=entries"),
    ],
    "nap": [
        Kill("F4", "asleep", PAYER, REPORTED, "flow=nap&has=is_new"),
        Kill("F4", "woken", PAYER, HANDLED, "flow=nap&event=TimerFired"),
        Kill("F4", "awake-not-committed", PAYER, BEFORE, "flow=nap&has=entries"),
        Kill("F4", "awake-committed", PAYER, AFTER, "flow=nap&has=entries"),
    ],
    "call a subflow": [
        Kill("F12 P1", "inside-begins", PAYER, BEGINS, "step=act", 2),
        Kill("F12 F3", "inside-done", PAYER, DONE, "step=act", 2),
        Kill("F12 S1", "inside-not-committed", PAYER, BEFORE, "flow=whole&has=entries", 3),
        Kill("F12 P2", "inside-committed", PAYER, AFTER, "flow=whole&has=entries", 3),
        Kill("F12", "after-it-done", PAYER, DONE, "step=note", 3),
    ],
    "ail": [
        Kill("F5", "error-handled", PAYER, HANDLED, "flow=ail&event=StepFailed"),
        Kill("F5", "error-not-committed", PAYER, BEFORE, "flow=ail&status=retrying"),
        Kill("F5", "error-committed", PAYER, AFTER, "flow=ail&status=retrying"),
        Kill("F5", "attempt-handled", PAYER, HANDLED, "flow=ail&event=TimerFired"),
    ],
    "order": [
        Kill("F1", "order-not-committed", PAYER, BEFORE, "unit=SendMutation"),
        Kill("F1", "order-committed", PAYER, AFTER, "unit=SendMutation"),
        Kill("F1", "order-reported", PAYER, REPORTED, "unit=SendMutation"),
        Kill("F1", "start-taken", PAYER, TAKEN),
        Kill("F1", "signal-taken", PAYER, TAKEN, nth=2),
        Kill("F1", "start-handled", PAYER, HANDLED, "flow=ship&event=FlowAdmitted"),
        Kill("F1", "start-not-committed", PAYER, BEFORE, "flow=ship&has=is_new"),
        Kill("F1", "start-committed", PAYER, AFTER, "flow=ship&has=is_new"),
        Kill("F1", "signal-handled", PAYER, HANDLED, "flow=ship&event=SignalReceived"),
        Kill("F1", "address-not-committed", PAYER, BEFORE, "flow=ship&has=entries", 2),
        Kill("F1", "address-committed", PAYER, AFTER, "flow=ship&has=entries", 2),
    ],
    "order from outside": [
        Kill("F1", "drain-not-committed", PAYER, BEFORE, "unit=FunctionMutation"),
        Kill("F1", "drain-committed", PAYER, AFTER, "unit=FunctionMutation"),
        Kill("F1", "drain-reported", PAYER, REPORTED, "unit=FunctionMutation"),
        Kill("F1", "start-taken", PAYER, TAKEN),
        Kill("F1", "start-committed", PAYER, AFTER, "flow=ship&has=is_new"),
        Kill("F1", "address-committed", PAYER, AFTER, "flow=ship&has=entries", 2),
    ],
    "delegate": [
        Kill("F1", "requests-not-committed", PAYER, BEFORE, "flow=delegate&has=requests"),
        Kill("F1", "requests-committed", PAYER, AFTER, "flow=delegate&has=requests"),
        Kill("F1", "first-start-taken", PAYER, TAKEN),
        Kill("F1", "second-start-taken", PAYER, TAKEN, nth=2),
        Kill("F1", "start-handled", PAYER, HANDLED, "flow=task&event=FlowAdmitted"),
        Kill("F1", "start-not-committed", PAYER, BEFORE, "flow=task&has=is_new"),
        Kill("F1", "start-committed", PAYER, AFTER, "flow=task&has=is_new"),
        Kill("F8", "end-not-committed", PAYER, BEFORE, "flow=task&has=is_ended"),
        Kill("F8", "end-committed", PAYER, AFTER, "flow=task&has=is_ended"),
        Kill("F8", "end-taken", PAYER, TAKEN, nth=3),
        Kill("F8", "end-handled", PAYER, HANDLED, "flow=delegate&event=SignalReceived"),
        Kill("F8", "end-received", PAYER, AFTER, "flow=delegate&has=ack_tokens", 2),
    ],
    "cancel": [
        Kill("F9", "cancel-handled", PAYER, HANDLED, "flow=book&event=FlowCancelRequested"),
        Kill("F9", "cancel-not-committed", PAYER, BEFORE, "flow=book&has=entries", 2),
        Kill("F9", "cancel-committed", PAYER, AFTER, "flow=book&has=entries", 2),
        Kill("F9", "refund-not-committed", PAYER, BEFORE, "flow=book&has=entries", 3),
        Kill("F9", "refund-committed", PAYER, AFTER, "flow=book&has=entries", 3),
    ],
}
"""By what is being done when somebody dies."""


def _ids(**numbers: Iterable[int]) -> frozenset[str]:
    return frozenset(f"{kind}{number}" for kind, some in numbers.items() for number in some)


TROUBLES = _ids(S=[3], R=[8, 10, 11, 13], F=[10, 11, 13, 14, 15, 16], P=[5, 6, 7, 8, 10])
"""Those that are tests of their own, because there is more to them than one death."""
DISK = (LOST,)
"""Where a process dies that cannot write: F15."""
SCHEDULED = ("flows.schedule.due", "flows.schedule.started")
"""Where a process dies when the time of a schedule has come: F16."""
ALL = _ids(S=range(1, 12), R=range(1, 15), F=range(1, 17), P=range(1, 11)) - {"S10", "R12"}
