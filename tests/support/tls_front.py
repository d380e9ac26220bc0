"""A TLS proxy in front of a server that speaks none, with its own certificates and, on request, client ones."""

import asyncio
import datetime
import ssl
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID


@dataclass(frozen=True, kw_only=True)
class Certificates:
    """PEM files: the CA that vouches for both sides, and what each side presents."""

    ca: Path
    server: Path
    server_key: Path
    client: Path
    client_key: Path


def make_certificates(folder: Path) -> Certificates:
    """Certificates for `temporal.test` and for one client, valid for an hour."""
    ca_key = ec.generate_private_key(ec.SECP256R1())
    ca = _certificate("ca", ca_key, None, ca_key)
    files: dict[str, Path] = {"ca": folder / "ca.pem"}
    files["ca"].write_bytes(ca.public_bytes(serialization.Encoding.PEM))
    for name, called in (("server", "temporal.test"), ("client", "worker")):
        key = ec.generate_private_key(ec.SECP256R1())
        files[name], files[f"{name}_key"] = folder / f"{name}.pem", folder / f"{name}.key"
        files[name].write_bytes(_certificate(called, key, ca, ca_key).public_bytes(serialization.Encoding.PEM))
        files[f"{name}_key"].write_bytes(
            key.private_bytes(
                serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
            )
        )
    return Certificates(**files)


def _certificate(
    called: str, key: ec.EllipticCurvePrivateKey, ca: x509.Certificate | None, ca_key: ec.EllipticCurvePrivateKey
) -> x509.Certificate:
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, called)])
    now = datetime.datetime.now(datetime.UTC)
    made = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name if ca is None else ca.subject)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - datetime.timedelta(minutes=5))
        .not_valid_after(now + datetime.timedelta(hours=1))
        .add_extension(x509.BasicConstraints(ca=ca is None, path_length=None), critical=True)
    )
    if ca is not None:
        made = made.add_extension(x509.SubjectAlternativeName([x509.DNSName(called)]), critical=False)
    return made.sign(ca_key, hashes.SHA256())


@asynccontextmanager
async def tls_front(behind: str, certificates: Certificates, *, asks_for_client: bool) -> AsyncGenerator[str]:
    """Make a server reachable by TLS as well; yields the address of the proxy."""
    host, _, port = behind.rpartition(":")
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH, cafile=str(certificates.ca))
    context.load_cert_chain(certificates.server, certificates.server_key)
    context.set_alpn_protocols(["h2"])
    if asks_for_client:
        context.verify_mode = ssl.CERT_REQUIRED

    going: set[asyncio.Task[None]] = set()

    async def pass_on(source: asyncio.StreamReader, sink: asyncio.StreamWriter) -> None:
        with suppress(OSError):
            while data := await source.read(65536):
                sink.write(data)
                await sink.drain()
        sink.close()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        inner_reader, inner_writer = await asyncio.open_connection(host, int(port))
        try:
            await asyncio.gather(pass_on(reader, inner_writer), pass_on(inner_reader, writer))
        except asyncio.CancelledError:
            # The proxy is closing; a task that ends as cancelled would be reported.
            pass
        finally:
            for each in (writer, inner_writer):
                each.transport.abort()

    def open_up(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.create_task(serve(reader, writer))
        going.add(task)
        task.add_done_callback(going.discard)

    door = await asyncio.start_server(open_up, "127.0.0.1", 0, ssl=context)
    try:
        yield f"127.0.0.1:{door.sockets[0].getsockname()[1]}"
    finally:
        door.close()
        for task in tuple(going):
            task.cancel()
        await asyncio.gather(*going, return_exceptions=True)
