"""The version of the package: its one source, read by the build and by ``postroad.__version__``."""

__version__ = "0.1.0"
