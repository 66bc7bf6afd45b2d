"""What operators do and see: each action once, for the command line, the dashboard and programs."""

from postroad.core.errors import (
    MessagingError,
    MissingExtraError,
    PostroadError,
    StoreError,
    StoreLockedError,
)
from postroad.net.owned_files import make_private_directory, read_file

from .certificates import (
    NODE_DAYS,
    ROOT_DAYS,
    ROOT_NAME,
    CertificateStatus,
    NodeCertificate,
    TrustRoot,
    create_root,
    inspect_certificates,
    issue,
)

__all__ = [
    "NODE_DAYS",
    "ROOT_DAYS",
    "ROOT_NAME",
    "CertificateStatus",
    "MessagingError",
    "MissingExtraError",
    "NodeCertificate",
    "PostroadError",
    "StoreError",
    "StoreLockedError",
    "TrustRoot",
    "create_root",
    "inspect_certificates",
    "issue",
    "make_private_directory",
    "read_file",
]
