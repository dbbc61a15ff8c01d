"""The daemon: tail the orders' change stream, keep what must be told in an outbox, tell it."""
