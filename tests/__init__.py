"""The tests of Postroad, and the modules they share."""
