"""HTTP in: receive, admit, process. Needs nothing but `models`."""
