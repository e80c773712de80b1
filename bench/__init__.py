"""`python -m bench`: Headrace beside its peers, in one run, on this machine."""
