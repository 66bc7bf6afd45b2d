"""What happens when: certificates, requests, mail, cells, services, flows, a job, and crashes."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from postroad import PostroadError
from postroad.admin import create_root

from .cells_act import DOMAINS, CellsAct
from .clearing_act import ClearingAct, require_spark
from .flows_act import FlowsAct
from .mail_act import MailAct
from .moleculer_act import TELLER, MoleculerAct
from .request_act import RequestAct
from .screen import Line, Screen, Tone
from .services_act import BROKERS, ServicesAct
from .stage import Stage
from .tables import verdict_line

NODES = ("alpha", "beta")


@dataclass(frozen=True, kw_only=True)
class Plan:
    """What the command line asked for."""

    seconds: float
    mail_seconds: float
    cells_seconds: float
    services_seconds: float
    flows_seconds: float
    clearing_seconds: float
    callers: int
    payload_bytes: int
    has_spark: bool
    """Whether the part with Spark is wanted."""
    has_javascript: bool
    """Whether a node of Moleculer is wanted."""
    directory: Path | None
    """Where files go and stay; None for a place of their own that is removed at the end."""


class Story:
    """One run of the demo, with its files in a directory."""

    def __init__(self, plan: Plan, screen: Screen, directory: Path) -> None:
        self._screen = screen
        self._directory = directory
        self._stage = Stage(screen, directory, NODES)
        self._domains = Stage(screen, directory, DOMAINS)
        self._brokers = Stage(screen, directory, BROKERS)
        self._abroad = Stage(screen, directory, (TELLER,))
        self._requests = RequestAct(self._stage, plan.seconds, plan.callers, plan.payload_bytes)
        self._mail = MailAct(self._stage, plan.mail_seconds)
        self._cells = CellsAct(self._domains, plan.cells_seconds)
        moleculer = MoleculerAct(self._abroad) if plan.has_javascript else None
        self._services = ServicesAct(self._brokers, plan.services_seconds, moleculer)
        self._flows = FlowsAct(self._stage, plan.flows_seconds)
        self._clearing = ClearingAct(self._stage, plan.clearing_seconds)
        self._has_spark = plan.has_spark

    @property
    def _stages(self) -> list[Stage]:
        return [self._stage, self._domains, self._brokers, self._abroad]

    async def play(self) -> bool:
        """Play it; True if everything adds up. No process is left when this returns or raises."""
        self._screen.say(
            Line("Postroad demo: node processes over mutual TLS 1.3", Tone.TITLE), Line("")
        )
        try:
            self._make_certificates()
            self._announce("1. Requests", self._requests.title)
            requests_add_up = await self._requests.play()
            self._announce("2. Durable mail", self._mail.title)
            mail_adds_up = await self._mail.play()
            self._announce("3. Cells", self._cells.title)
            cells_add_up = await self._cells.play()
            self._announce("4. Services", self._services.title)
            services_add_up = await self._services.play()
            self._announce("5. Flows", self._flows.title)
            flows_add_up = await self._flows.play()
            clearing_adds_up = await self._play_clearing()
        finally:
            for stage in self._stages:
                await stage.clear()
        adds_up = (
            requests_add_up
            and mail_adds_up
            and cells_add_up
            and services_add_up
            and flows_add_up
            and clearing_adds_up
        )
        self._screen.say(verdict_line(adds_up))
        return adds_up

    def _make_certificates(self) -> None:
        create_root(self._directory)
        for stage in self._stages:
            stage.make_certificates()

    async def _play_clearing(self) -> bool:
        """The part that needs Spark; without it the others are the whole story."""
        if not self._has_spark:
            return True
        try:
            await require_spark()
        except PostroadError as error:
            self._announce("6. Clearing on Spark", f"Left out: {error}")
            return True
        self._announce("6. Clearing on Spark", self._clearing.title)
        return await self._clearing.play()

    def _announce(self, name: str, title: str) -> None:
        self._screen.say(Line(name, Tone.TITLE), Line(title), Line(""))
