"""Operations over HTTP: an API made from their table, live changes, metrics, and the dashboard."""

__all__: list[str] = []
