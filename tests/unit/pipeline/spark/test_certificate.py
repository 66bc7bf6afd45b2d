"""The certificate of a run."""

from __future__ import annotations

from datetime import UTC, datetime

from cryptography import x509

from postroad.pipeline.spark.certificate import make_certificate


def test_certificate_counts_whatever_the_clocks_of_hosts_say() -> None:
    """A machine whose clock was never set believes that it is 1970."""
    certificate = x509.load_pem_x509_certificate(make_certificate())
    assert certificate.not_valid_before_utc <= datetime(1970, 1, 1, tzinfo=UTC)
    assert certificate.not_valid_after_utc >= datetime(2100, 1, 1, tzinfo=UTC)
