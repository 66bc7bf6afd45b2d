"""The end of the fourth part, if it can be had: a node of Moleculer, on Node.js and over NATS."""

from __future__ import annotations

from .javascript import LeftOut, find_tools
from .processes import DemoFailed
from .records import Meeting, MeetingReport
from .screen import Line, Tone
from .services_verdict import meeting_checks
from .stage import Stage
from .tables import check_lines

TELLER = "teller"
TIMEOUT_S = 30.0


class MoleculerAct:
    """A node of Postroad and one of Moleculer call each other."""

    def __init__(self, stage: Stage) -> None:
        self._stage = stage
        self._met: MeetingReport | None = None

    async def play(self) -> bool:
        """Play it; True if everything adds up, or if it was left out."""
        say = self._stage.screen.say
        try:
            tools = await find_tools()
        except LeftOut as reason:
            say(Line(f"Left out: a node of Moleculer over NATS: {reason}"), Line(""))
            return True
        met = await self._meet(
            Meeting(
                nats_server=tools.nats_server,
                javascript=tools.javascript,
                modules=tools.modules,
                place=str(self._stage.path(TELLER, "nats").parent),
            )
        )
        found = meeting_checks(met)
        title = f"A node of Postroad beside one of {met.versions}, over NATS"
        say(Line(title, Tone.TITLE), *check_lines(found), Line(""))
        return all(check.holds for check in found)

    async def _meet(self, task: Meeting) -> MeetingReport:
        stage = self._stage
        await stage.start(TELLER, task, self._take)
        await stage.wait_for(lambda: stage.is_resting(TELLER), TIMEOUT_S)
        if self._met is None:
            raise DemoFailed(f"{TELLER} and the node of Moleculer said nothing")
        await stage.stop(TELLER)
        return self._met

    def _take(self, report: MeetingReport) -> None:
        self._met = report
