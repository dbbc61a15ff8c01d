"""The mail channel against real SMTP servers on loopback: what is delivered, and what each failure is called."""

from __future__ import annotations

import asyncio
import contextlib
import socket
import ssl
from collections.abc import AsyncIterator, Callable, Iterator
from email import message_from_bytes
from email.message import EmailMessage
from email.policy import default
from pathlib import Path
from typing import Any

import pytest
from aiosmtpd.controller import Controller
from aiosmtpd.smtp import SMTP as Server  # noqa: N811
from aiosmtpd.smtp import AuthResult, Envelope, Session

from models.errors import SettingsError
from models.settings import Settings
from tests.support.certificate import self_signed, server_side
from watcher.channels import Message, NotSent, Rejected, SendError, Unknown
from watcher.channels.email import EmailChannel

pytestmark = [
    # aiosmtpd 1.4 sets Session.login_data itself, which its own Session declares deprecated.
    pytest.mark.filterwarnings("ignore:Session.login_data is deprecated:DeprecationWarning"),
    # aiosmtpd warns about `auth_required` without TLS, which is what a loopback test wants.
    pytest.mark.filterwarnings("ignore:Requiring AUTH while not requiring TLS:UserWarning:aiosmtpd.smtp"),
    pytest.mark.filterwarnings("ignore:tls_context.verify_mode not in:UserWarning:aiosmtpd.smtp"),
]

MESSAGE = Message(
    address="priya@example.com", subject="Order A-1 is paid", text="Thank you.\n", html="<p>Thank you.</p>\n"
)


class Inbox:
    """An aiosmtpd handler that keeps mails, and answers as told."""

    def __init__(self, rcpt: str = "250 OK", data: str = "250 OK", mail: str = "250 OK") -> None:
        self.rcpt, self.data, self.mail = rcpt, data, mail
        self.envelopes: list[Envelope] = []
        self.peers: list[Any] = []
        self.encrypted: list[bool] = []

    async def handle_MAIL(self, _s: Server, _x: Session, envelope: Envelope, address: str, _o: list[str]) -> str:  # noqa: N802
        if self.mail.startswith("250"):
            envelope.mail_from = address
        return self.mail

    async def handle_RCPT(self, _s: Server, _x: Session, envelope: Envelope, address: str, _o: list[str]) -> str:  # noqa: N802
        if self.rcpt.startswith("250"):
            envelope.rcpt_tos.append(address)
        return self.rcpt

    async def handle_DATA(self, _s: Server, session: Session, envelope: Envelope) -> str:  # noqa: N802
        self.envelopes.append(envelope)
        self.peers.append(session.peer)
        self.encrypted.append(session.ssl is not None)
        return self.data

    @property
    def contents(self) -> list[bytes]:
        return [envelope.content for envelope in self.envelopes if isinstance(envelope.content, bytes)]

    @property
    def mails(self) -> list[EmailMessage]:
        return [message_from_bytes(content, policy=default) for content in self.contents]


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


@contextlib.contextmanager
def serving(inbox: Inbox, port: int | None = None, **options: Any) -> Iterator[int]:
    controller = Controller(inbox, hostname="127.0.0.1", port=port or free_port(), **options)
    controller.start()
    try:
        yield int(controller.port)
    finally:
        controller.stop()


@contextlib.asynccontextmanager
async def scripted(
    talk: Callable[[asyncio.StreamReader, asyncio.StreamWriter], Any],
) -> AsyncIterator[tuple[int, list[int]]]:
    """A server that says exactly what `talk` says; yields its port and a list with one entry per connection."""
    connections: list[int] = []
    tasks: set[asyncio.Task[None]] = set()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        connections.append(len(connections))
        task = asyncio.current_task()
        assert task is not None
        tasks.add(task)
        with contextlib.suppress(OSError, asyncio.IncompleteReadError, asyncio.CancelledError):
            await talk(reader, writer)
        writer.close()
        with contextlib.suppress(OSError):
            await writer.wait_closed()

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    try:
        yield server.sockets[0].getsockname()[1], connections
    finally:
        server.close()
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


async def say(writer: asyncio.StreamWriter, line: bytes) -> None:
    writer.write(line + b"\r\n")
    await writer.drain()


def talk(**replies: bytes | None) -> Callable[[asyncio.StreamReader, asyncio.StreamWriter], Any]:
    """Answer each verb; None means silence, `b""` means hanging up. `content` is the reply to the mail itself."""
    usual = {
        "hello": b"220 hi",
        "EHLO": b"250 hi",
        "MAIL": b"250 ok",
        "RCPT": b"250 ok",
        "DATA": b"354 go",
        "content": b"250 ok",
    }
    answers: dict[str, bytes | None] = {**usual, "RSET": b"250 ok", "QUIT": b"221 bye", **replies}

    async def conversation(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        verb = "hello"
        while True:
            answer = answers[verb]
            if answer is None:
                await asyncio.sleep(30)
            elif not answer:
                return
            else:
                await say(writer, answer)
            if verb == "DATA" and answer == b"354 go":
                await reader.readuntil(b"\r\n.\r\n")
                verb = "content"
            else:
                verb = (await reader.readuntil(b"\r\n"))[:4].decode().strip().upper()

    return conversation


def settings(port: int, **email: Any) -> Settings:
    given = {
        "host": "127.0.0.1",
        "port": port,
        "from": "Our Shop <shop@example.com>",
        "timeout": 5,
        "tls": "none",
        **email,
    }
    sections: dict[str, Any] = {"mongodb": {"uri": "mongodb://127.0.0.1:1"}, "email": given}
    return Settings(**sections, _env_file=None)


def channel(port: int, **email: Any) -> EmailChannel:
    return EmailChannel(settings(port, **email))


async def failure(port: int, message: Message = MESSAGE, **email: Any) -> SendError:
    async with channel(port, **email) as mail:
        with pytest.raises(SendError) as caught:
            await mail.send("key", message)
    return caught.value


def message(**changes: Any) -> Message:
    return Message(**{**MESSAGE.to_document(), **changes})


@pytest.mark.asyncio
async def test_a_mail_arrives_as_text_and_html_with_its_headers() -> None:
    inbox = Inbox()
    with serving(inbox) as port:
        async with channel(port) as mail:
            sent = await mail.send("order:1:payment_completed:email:customer", MESSAGE)
    (arrived,) = inbox.mails
    assert inbox.envelopes[0].mail_from == "shop@example.com"
    assert inbox.envelopes[0].rcpt_tos == ["priya@example.com"]
    assert arrived.get_content_type() == "multipart/alternative"
    assert [part.get_content_type() for part in arrived.iter_parts()] == ["text/plain", "text/html"]
    assert arrived.get_body(("plain",)).get_content().strip() == "Thank you."  # type: ignore[union-attr]
    assert arrived.get_body(("html",)).get_content().strip() == "<p>Thank you.</p>"  # type: ignore[union-attr]
    assert arrived["From"] == "Our Shop <shop@example.com>"
    assert arrived["To"] == "priya@example.com"
    assert arrived["Auto-Submitted"] == "auto-generated"
    assert arrived["Date"].datetime is not None
    assert arrived["Message-ID"] == sent.provider_message_id


@pytest.mark.asyncio
async def test_the_message_id_depends_on_the_key_alone() -> None:
    with serving(Inbox()) as port:
        async with channel(port) as mail:
            first, again, other = [await mail.send(key, MESSAGE) for key in ("a", "a", "b")]
    assert first == again != other
    assert first.provider_message_id.endswith("@example.com>")


@pytest.mark.asyncio
async def test_unicode_survives_in_subject_and_bodies() -> None:
    inbox = Inbox()
    subject = "ऑर्डर A-1 ✓ ₹4,99,000.00 " + "और " * 40 + "अंत"
    text = "नमस्ते ₹\n.\n.leading dot\n" + "x" * 1500 + "\n"
    with serving(inbox) as port:
        async with channel(port) as mail:
            await mail.send("key", message(subject=subject, text=text, html="<p>₹ नमस्ते</p>"))
    (arrived,) = inbox.mails
    assert arrived["Subject"] == subject
    assert arrived.get_body(("plain",)).get_content().replace("\r\n", "\n") == text  # type: ignore[union-attr]
    assert "नमस्ते" in arrived.get_body(("html",)).get_content()  # type: ignore[union-attr]
    inbox.contents[0].decode("ascii")


@pytest.mark.asyncio
async def test_a_line_break_in_the_subject_never_becomes_a_header() -> None:
    inbox = Inbox()
    hostile = ("\r\n", "\n", "\r", "\x0b", "\x0c", "\x85", "\u2028", "\x00")
    with serving(inbox) as port:
        async with channel(port) as mail:
            for breaks in hostile:
                with pytest.raises(Rejected, match=r"^header_injection$"):
                    await mail.send("key", message(subject=f"A-1 {breaks} Bcc: evil@example.com"))
    assert inbox.envelopes == []


@pytest.mark.asyncio
async def test_an_encoded_line_break_in_the_subject_stays_the_text_it_is() -> None:
    inbox = Inbox()
    hostile = "=?utf-8?q?x=0D=0ABcc:_evil@example.com?="
    with serving(inbox) as port:
        async with channel(port) as mail:
            await mail.send("key", message(subject=hostile))
    (arrived,) = inbox.mails
    assert arrived["Subject"] == hostile
    assert "Bcc" not in arrived
    assert b"\nBcc" not in inbox.contents[0]


@pytest.mark.asyncio
@pytest.mark.parametrize(
    "address", ["a@example.com, b@example.com", "a@example.com\r\nRCPT TO:<b@example.com>", "garbage", ""]
)
async def test_a_stored_address_that_is_not_one_address_is_rejected(address: str) -> None:
    inbox = Inbox()
    with serving(inbox) as port:
        error = await failure(port, message(address=address))
    assert isinstance(error, Rejected)
    assert inbox.envelopes == []


@pytest.mark.asyncio
async def test_half_a_surrogate_pair_is_rejected() -> None:
    assert isinstance(await failure(free_port(), message(text="\ud83d")), Rejected)


@pytest.mark.asyncio
@pytest.mark.parametrize("stage", ["mail", "rcpt", "data"])
@pytest.mark.parametrize(("code", "kind"), [(421, NotSent), (451, NotSent), (550, Rejected), (552, Rejected)])
async def test_a_refusal_is_for_now_or_for_good_by_its_code(stage: str, code: int, kind: type[SendError]) -> None:
    with serving(Inbox(**{stage: f"{code} no such user priya@example.com"})) as port:
        error = await failure(port)
    sender_refused = (stage, code) == ("mail", 550)  # a fault of the shop's configuration, not of this mail
    assert type(error) is (NotSent if sender_refused else kind)
    assert error.reason == f"{'content' if stage == 'data' else stage}_{code}"
    assert "priya" not in repr(error)


@pytest.mark.asyncio
@pytest.mark.parametrize(("reply", "kind"), [(b"451 later", NotSent), (b"554 never", Rejected)])
async def test_a_refusal_of_the_data_command_counts_too(reply: bytes, kind: type[SendError]) -> None:
    async with scripted(talk(DATA=reply)) as (port, _):
        assert type(await failure(port)) is kind


@pytest.mark.asyncio
@pytest.mark.parametrize("stage", ["hello", "EHLO", "MAIL", "RCPT", "DATA"])
@pytest.mark.parametrize("answer", [None, b""])
async def test_silence_or_a_hang_up_before_the_content_means_not_sent(stage: str, answer: bytes | None) -> None:
    async with scripted(talk(**{stage: answer})) as (port, _):
        assert type(await failure(port, timeout=0.3)) is NotSent


@pytest.mark.asyncio
@pytest.mark.parametrize("answer", [None, b"", b"what?", b"354 again"])
async def test_silence_a_hang_up_or_nonsense_after_the_content_means_unknown(answer: bytes | None) -> None:
    async with scripted(talk(content=answer)) as (port, _):
        assert type(await failure(port, timeout=0.3)) is Unknown


@pytest.mark.asyncio
@pytest.mark.parametrize("code", [421, 550, 554])
async def test_a_server_that_refuses_everybody_does_not_refuse_the_message(code: int) -> None:
    async with scripted(talk(hello=b"%d go away" % code)) as (port, _):
        assert type(await failure(port)) is NotSent
    async with scripted(talk(EHLO=b"%d go away" % code, HELO=b"%d go away" % code)) as (port, _):
        assert type(await failure(port)) is NotSent


@pytest.mark.asyncio
async def test_a_refused_connection_is_not_sent() -> None:
    error = await failure(free_port())
    assert (type(error), error.reason) == (NotSent, "connect_refused")


@pytest.mark.asyncio
async def test_an_unknown_host_is_not_sent(monkeypatch: pytest.MonkeyPatch) -> None:
    async def nobody(*_: Any, **__: Any) -> None:
        raise socket.gaierror(socket.EAI_NONAME, "unknown")

    monkeypatch.setattr(asyncio.get_running_loop(), "getaddrinfo", nobody)
    error = await failure(25, host="mail.example.com")
    assert (type(error), error.reason) == (NotSent, "connect_dns_failed")


@pytest.mark.asyncio
async def test_an_error_is_told_without_the_servers_text_or_the_address() -> None:
    with serving(Inbox(rcpt="550 <priya@example.com> unknown here")) as port:
        error = await failure(port)
    assert error.__suppress_context__
    assert str(error) == "rcpt_550"


@pytest.mark.asyncio
async def test_several_mails_share_one_connection() -> None:
    inbox = Inbox()
    with serving(inbox) as port:
        async with channel(port) as mail:
            for number in range(3):
                await mail.send(str(number), MESSAGE)
    assert len(inbox.envelopes) == 3
    assert len(set(inbox.peers)) == 1


@pytest.mark.asyncio
async def test_a_connection_is_not_reused_after_an_error() -> None:
    inbox = Inbox()
    with serving(inbox) as port:
        async with channel(port) as mail:
            await mail.send("1", MESSAGE)
            inbox.rcpt = "550 no"
            with pytest.raises(Rejected):
                await mail.send("2", MESSAGE)
            inbox.rcpt = "250 OK"
            await mail.send("3", MESSAGE)
    assert len(set(inbox.peers)) == 2


@pytest.mark.asyncio
async def test_an_idle_connection_that_broke_is_replaced_without_an_error() -> None:
    inbox, port = Inbox(), free_port()
    async with channel(port) as mail:
        with serving(inbox, port):
            await mail.send("1", MESSAGE)
        with serving(inbox, port):
            await mail.send("2", MESSAGE)
    assert len(inbox.envelopes) == 2


@pytest.mark.asyncio
@pytest.mark.parametrize("answer", [None, b"", b"421 idle for too long"])
async def test_an_idle_connection_that_answers_no_more_leads_to_one_reconnect(answer: bytes | None) -> None:
    async with scripted(talk(RSET=answer)) as (port, connections), channel(port, timeout=1) as mail:
        await mail.send("1", MESSAGE)
        await mail.send("2", MESSAGE)
        assert len(connections) == 2


@pytest.mark.asyncio
async def test_concurrent_mails_use_no_more_connections_than_configured() -> None:
    async with scripted(talk()) as (port, connections), channel(port, concurrency=2) as mail:
        await asyncio.gather(*(mail.send(str(number), MESSAGE) for number in range(8)))
        assert len(connections) == 2


@pytest.mark.asyncio
async def test_cancelling_a_send_closes_its_connection() -> None:
    hung, closed = asyncio.Event(), asyncio.Event()

    async def conversation(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await say(writer, b"220 hi")
        hung.set()
        await reader.read()
        closed.set()

    async with scripted(conversation) as (port, _), channel(port) as mail:
        sending = asyncio.ensure_future(mail.send("key", MESSAGE))
        await hung.wait()
        sending.cancel()
        with pytest.raises(asyncio.CancelledError):
            await sending
        async with asyncio.timeout(2):
            await closed.wait()


def login(*, success: bool) -> dict[str, Any]:
    def authenticator(*_: Any) -> AuthResult:
        return AuthResult(success=success, handled=False)

    return {"authenticator": authenticator, "auth_require_tls": False, "auth_required": True}


@pytest.mark.asyncio
async def test_it_logs_in_where_a_username_is_set() -> None:
    inbox = Inbox()
    with serving(inbox, **login(success=True)) as port:
        async with channel(port, username="shop", password="secret") as mail:
            await mail.send("key", MESSAGE)
    assert len(inbox.envelopes) == 1


@pytest.mark.asyncio
@pytest.mark.parametrize("credentials", [{"username": "shop", "password": "wrong"}, {}])
async def test_wrong_or_missing_credentials_do_not_condemn_the_message(credentials: dict[str, Any]) -> None:
    with serving(Inbox(), **login(success=False)) as port:
        error = await failure(port, **credentials)
    assert (type(error), error.reason) == (NotSent, "auth_failed")


@pytest.mark.asyncio
async def test_starttls_that_is_demanded_and_not_offered_is_not_sent() -> None:
    with serving(Inbox()) as port:
        error = await failure(port, tls="starttls")
    assert (type(error), error.reason) == (NotSent, "connect_unsupported")


@pytest.fixture(scope="module")
def certificate(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    return self_signed(tmp_path_factory.mktemp("certificate"))


@pytest.fixture
def tls(certificate: tuple[Path, Path]) -> ssl.SSLContext:
    return server_side(certificate)


@pytest.mark.asyncio
@pytest.mark.parametrize("mode", ["auto", "starttls", "tls"])
async def test_mail_travels_encrypted_and_only_to_a_server_that_proves_its_name(
    mode: str,
    tls: ssl.SSLContext,
    certificate: tuple[Path, Path],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    inbox = Inbox()
    options: dict[str, Any] = {"ssl_context": tls} if mode == "tls" else {"tls_context": tls}
    with serving(inbox, **options) as port:
        stranger = await failure(port, tls=mode)
        monkeypatch.setenv("SSL_CERT_FILE", str(certificate[0]))
        async with channel(port, tls=mode) as mail:
            await mail.send("key", MESSAGE)
    assert (type(stranger), stranger.reason) == (NotSent, "connect_tls_failed")
    assert len(inbox.envelopes) == 1
    assert mode == "tls" or inbox.encrypted == [True]


@pytest.mark.parametrize(
    "wrong",
    ["", "shop", "a@example.com, b@example.com", "Shop <a@example.com> <b@example.com>", "A\nB <a@example.com>"],
)
def test_a_wrong_sender_is_a_settings_error(wrong: str) -> None:
    with pytest.raises(SettingsError, match="PAYLATCH_EMAIL__FROM"):
        channel(25, **{"from": wrong})


@pytest.mark.asyncio
@pytest.mark.parametrize(
    ("given", "shown"),
    [
        ("shop@example.com", ""),
        ("Acme, Inc. <shop@example.com>", "Acme, Inc."),
        ('"Café ☕" <shop@example.com>', "Café ☕"),
    ],
)
async def test_a_sender_may_carry_a_name(given: str, shown: str) -> None:
    inbox = Inbox()
    with serving(inbox) as port:
        async with channel(port, **{"from": given}) as mail:
            await mail.send("key", MESSAGE)
    (sender,) = inbox.mails[0]["From"].addresses
    assert (sender.display_name, sender.addr_spec) == (shown, "shop@example.com")
