"""`paylatch templates`: which words there are, and how a message reads before a customer gets it."""

from __future__ import annotations

import sys
from dataclasses import asdict, dataclass
from typing import Annotated, Any

from cyclopts import App, Parameter

from models.errors import Refused, WrongArgument
from models.settings import ALERT_ROUTES, Recipient, Settings, load_settings
from models.telemetry import Telemetry
from scripts.audit import audit
from scripts.order_find import find
from scripts.output import STDOUT, output, print_json, print_table, visible, write_text
from scripts.session import session
from scripts.template_files import NOTICES, files, origin_of
from scripts.template_sample import Subject, latest, sample, without_person
from watcher.particulars import at_path
from watcher.render import BUILT_IN, Rendered, Renderer, RenderError

app = App(name="templates", help="The words of messages: which there are, and how they read.")

_NO_DATABASE = "mongodb://not-used"


@Parameter(name="*")
@dataclass(frozen=True)
class Choice:
    """Whose words, and about what.

    Parameters
    ----------
    channel
        email, inapp, sms, whatsapp, apprise or webhook.
    recipient
        customer, admin or user; by default the first of them whom your routes tell of it by this channel.
    language
        The customer's language, such as hi or hi-IN; by default what the order says, else the shop's.
    order
        A stored order (`_id`, number, provider's order id or payment id) instead of the made-up one.
    reveal
        Show the stored order's name and address too; the audit log keeps who did.
    """

    channel: str = "email"
    recipient: Recipient | None = None
    language: str | None = None
    order: str | None = None
    reveal: Annotated[bool, Parameter(negative=())] = False


@app.command
async def preview(
    notice: str,
    *,
    which: Choice | None = None,
    html: Annotated[str | None, Parameter(allow_leading_hyphen=True)] = None,
    as_json: Annotated[bool, Parameter(name="--json", negative=())] = False,
) -> None:
    """Show a message as it would be sent; nothing is sent. Only a stored order needs the database.

    Example: `paylatch templates preview payment_completed --language hi --html mail.html`

    Parameters
    ----------
    notice
        payment_completed, payment_failed, payment_refunded, refund_processed, refund_failed, payment_review,
        dispute_opened, dispute_closed or alert.
    html
        Write the mail's HTML to this file, for a browser (`-`: to standard output), instead of the text.
    as_json
        A JSON object instead of text.
    """
    _require(notice)
    if as_json and html == STDOUT:
        raise WrongArgument("JSON and HTML cannot both go to standard output: give --html a file")
    chosen = which or Choice()
    settings, about, spoken = await _about(notice, chosen)
    meant = _Meant(notice, chosen.channel, chosen.recipient or _first(settings, notice, chosen.channel))
    words, failure = _rendered(settings, meant, about, spoken)
    if html is not None:
        _write_html(words, html, chosen.channel)
    if as_json:
        print_json({**asdict(meant), **asdict(words)})
    elif html is None:
        _print(meant, words)
    _remark(meant, chosen.language, about, words)
    if failure:
        raise Refused(f"{failure}: this is the built-in text, which would be sent instead of yours")


@dataclass(frozen=True, slots=True)
class _Meant:
    notice: str
    channel: str
    recipient: str


def _rendered(settings: Settings, meant: _Meant, about: Subject, spoken: object) -> tuple[Rendered, str]:
    """The message, and where and how the shop's own template failed on it. Raises `Refused` without a template."""
    failures: list[dict[str, Any]] = []
    renderer = Renderer(settings, Telemetry(lambda _, fields: failures.append(fields)), spoken)
    try:
        words = renderer.render(meant.notice, about.ref, meant.channel, meant.recipient, about.order, about.at)
    except RenderError as error:
        raise Refused(f"{error}: `paylatch templates list {meant.notice}` shows what there is") from None
    return words, next((f"{failed['at'] or 'your template'}: {failed['error']}" for failed in failures), "")


def _print(meant: _Meant, words: Rendered) -> None:
    subject = f"subject: {words.subject}\n" if words.subject else ""
    head = f"to: {meant.recipient}\nlanguage: {words.language}\n{subject}"
    write_text(visible(f"{head}\n{words.text.rstrip()}\n"), STDOUT)


def _require(notice: str) -> None:
    if notice not in NOTICES:
        raise WrongArgument(f"there is no notice {visible(notice)}: the notices are {', '.join(NOTICES)}")


async def _about(notice: str, chosen: Choice) -> tuple[Settings, Subject, object]:
    """Settings, order and fact, and the customer's language, which is read before anything is masked.

    Raises `WrongArgument` for an alert of an order.
    """
    if notice in ALERT_ROUTES and chosen.order is not None:
        raise WrongArgument("an alert is about no order: leave --order out")
    if chosen.order is None:
        return load_settings(mongodb={"uri": _NO_DATABASE}), sample(notice), chosen.language
    async with session() as now_open:
        order, now = await find(now_open.db, chosen.order), now_open.clock.now()
        if chosen.reveal:
            await audit(now_open.db, "templates preview --reveal", {"orderId": order["_id"]}, 1, now)
    settings = now_open.settings
    spoken = chosen.language or at_path(order, settings.notifications.language_path)
    return settings, latest(order if chosen.reveal else without_person(order), notice, now), spoken


def _first(settings: Settings, notice: str, channel: str) -> str:
    routes = settings.notifications.effective_routes.get(notice, {})
    told = [to for to in ("customer", "admin", "user") if channel in routes.get(to, ())]
    return told[0] if told else "admin" if notice in ALERT_ROUTES else "customer"


def _write_html(words: Rendered, where: str, channel: str) -> None:
    if words.html is None:
        raise WrongArgument(f"{channel} has no HTML: leave --html out")
    write_text(words.html, where)


def _remark(meant: _Meant, wanted: str | None, about: Subject, words: Rendered) -> None:
    """What the message does not show, on standard error."""
    if not about.known:
        sys.stderr.write(f"this order has no {meant.notice} yet: what only that fact would tell is left empty\n")
    if wanted and wanted.strip().lower()[:2] != words.language[:2]:
        why = "the shop's own people read its language" if meant.recipient == "admin" else "there are no words in it"
        sys.stderr.write(f"this is not in {visible(wanted)}: {why}\n")


@app.command(name="list")
def list_templates(
    notice: str | None = None,
    *,
    as_json: Annotated[bool, Parameter(name="--json", negative=())] = False,
) -> None:
    """List the templates by notice, channel, recipient and language, and whether each is built in or yours.

    Example: `paylatch templates list payment_completed`

    Parameters
    ----------
    notice
        Only this notice.
    as_json
        A JSON object instead of a table.
    """
    if notice is not None:
        _require(notice)
    settings = load_settings(mongodb={"uri": _NO_DATABASE})
    Renderer(settings)  # a template that cannot be read is told before anything else
    found = files(BUILT_IN, settings.notifications.templates)
    rows = {message: parts for message, parts in found.messages.items() if notice in {None, message.notice}}
    if as_json:
        listed = [
            {"notice": m.notice, "channel": m.channel, "recipient": m.recipient, "language": m.language, "parts": parts}
            for m, parts in rows.items()
        ]
        print_json({"templates": listed, "others": found.others})
        return
    cells = [(m.notice, m.channel, m.recipient, m.language, origin_of(parts)) for m, parts in rows.items()]
    print_table("Templates", ("notice", "channel", "recipient", "language", "from"), cells, output())
    if found.others:
        names = "\n  ".join(map(visible, found.others))
        write_text(f"In your folder, used only where a template includes or extends it:\n  {names}\n", STDOUT)
