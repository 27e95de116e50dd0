"""Keep a run going within one allocation: restart it without the hosts that were lost."""
