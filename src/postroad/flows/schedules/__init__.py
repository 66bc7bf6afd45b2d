"""Schedules: cron expressions, missed times, starts."""

__all__: list[str] = []
