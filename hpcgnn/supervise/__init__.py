"""Keeps a run going within one allocation: starts it again without the hosts that were lost."""
