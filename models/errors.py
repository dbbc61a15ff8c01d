"""Every error PayLatch raises on purpose; the message is one sentence an operator can act on.

PayLatchError
├── SettingsError            a setting is missing or wrong               -> the process does not start (exit 2)
│   └── CredentialsRefused   the provider does not take our API key
├── DatabaseUnfit            no replica set, indexes missing, ...        -> the process does not start (exit 3)
├── HistoryLost              not even a new change stream can be read    -> the watcher ends (exit 4)
├── Retryable                the world failed us; try again later
│   ├── LeaseLost            somebody else holds the row now: leave no effect
│   ├── PreconditionMissed   the order changed between read and write
│   ├── Unavailable          database or provider cannot be reached
│   └── ProviderUnavailable  the provider's API gives no usable answer
│       └── ProviderThrottled    it asks us to wait
├── Poison                   trying again cannot help                    -> dead letter
│   ├── Unparseable          authentic bytes that are not an event
│   └── OrderUnreadable      the stored order has no usable shape
├── ProviderRefused          the provider's API does not know what we ask for
└── Refused                  an operator's command that must not run     -> exit 1
    └── WrongArgument        an argument of it makes no sense            -> exit 2
"""


class PayLatchError(Exception):
    """Base of all errors of ours; `code` is the short name stored in documents and metrics."""

    @property
    def code(self) -> str:
        """The class's name in snake_case, as stored in `webhook_events.error`."""
        name = type(self).__name__
        return "".join(f"_{letter.lower()}" if letter.isupper() else letter for letter in name).lstrip("_")


class SettingsError(PayLatchError):
    """A setting is missing or wrong."""


class CredentialsRefused(SettingsError):  # noqa: N818
    """The provider's API does not take our key."""


class DatabaseUnfit(PayLatchError):  # noqa: N818 - states what is wrong, as the other names here do
    """The database cannot carry PayLatch's promises (no replica set, a missing or different index)."""


class HistoryLost(PayLatchError):  # noqa: N818
    """No change stream can be read, not even a new one from now on."""


class Retryable(PayLatchError):  # noqa: N818
    """The same step may succeed later."""


class LeaseLost(Retryable):
    """Another worker took this row over; nothing of ours may take effect."""


class PreconditionMissed(Retryable):
    """The order was written by somebody else between our read and our write."""


class Unavailable(Retryable):
    """The database or a provider cannot be reached."""


class ProviderUnavailable(Retryable):
    """The provider's API cannot be reached, is out of order, or answers something that is no answer."""


class ProviderThrottled(ProviderUnavailable):
    """The provider's API asks us to wait; `retry_after` is in seconds, None when it does not say for how long."""

    def __init__(self, message: str, retry_after: float | None = None) -> None:
        super().__init__(message)
        self.retry_after = retry_after


class Poison(PayLatchError):  # noqa: N818
    """No later attempt can succeed without a person."""


class Unparseable(Poison):
    """Authentic bytes that are not an event of this provider."""


class OrderUnreadable(Poison):
    """The stored order has no usable `payment` document."""


class ProviderRefused(PayLatchError):  # noqa: N818
    """The provider's API refuses exactly this question: the id is unknown there or wrong."""


class Refused(PayLatchError):  # noqa: N818
    """A command that must not run as asked."""


class WrongArgument(Refused):
    """An argument that makes no sense, whatever the state of things."""
