"""Which channels there are; the only place that knows them all."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

from models.settings import Settings
from watcher.channels import Channel, Stores
from watcher.channels.apprise import AppriseChannel
from watcher.channels.email import EmailChannel
from watcher.channels.inapp import InAppChannel
from watcher.channels.sms import SmsChannel
from watcher.channels.webhook import WebhookChannel
from watcher.channels.whatsapp import WhatsAppChannel

CHANNELS: Mapping[str, type[Channel]] = MappingProxyType(
    {
        "email": EmailChannel,
        "inapp": InAppChannel,
        "whatsapp": WhatsAppChannel,
        "sms": SmsChannel,
        "webhook": WebhookChannel,
        "apprise": AppriseChannel,
    }
)
"""Name, as written in the routes -> class."""


def channels(settings: Settings, database: Stores) -> dict[str, Channel]:
    """The configured channels by name; raises `SettingsError` for a channel that is configured wrongly."""
    missing = unconfigured(settings)
    return {name: channel.build(settings, database) for name, channel in CHANNELS.items() if name not in missing}


def unconfigured(settings: Settings) -> dict[str, str]:
    """Name -> the sentence that says which setting would switch this channel on."""
    reasons = {name: channel.unconfigured(settings) for name, channel in CHANNELS.items()}
    return {name: reason for name, reason in reasons.items() if reason is not None}
