"""Programs that show Postroad at work; each is run with `python -m examples.<name>`."""
